import pytest
import torch
from torch import nn

from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.parameter_groups import Stretch, stretches


def bucket_of(num_held, *sizes):
    lead = (num_held,) if num_held > 1 else ()
    parameters = [nn.Parameter(torch.zeros(*lead, size)) for size in sizes]
    (bucket,) = build_buckets(parameters, num_held=num_held, world_size=3, bucket_bytes=1 << 20)
    return parameters, bucket


@pytest.mark.parametrize("num_held", [1, 3])
def test_neighbours_of_one_group_are_one_stretch_and_all_columns_are_covered(num_held):
    (a, b, c, d), bucket = bucket_of(num_held, 5, 7, 11, 2)
    optimizer = torch.optim.SGD([{"params": [a, b, d]}, {"params": [c]}], lr=0.1)
    found = stretches(bucket, optimizer)
    assert found == [Stretch(0, 0, 2), Stretch(1, 2, 13), Stretch(0, 13, 25)]
    assert found[-1].stop == bucket.numel
    assert stretches(bucket, optimizer) is found, "they are found once, not at each step"
    bucket.weights[found[1].columns] = 4.0
    assert c.eq(4).all()
    assert a.eq(0).all() and b.eq(0).all() and d.eq(0).all()


def test_options_are_those_of_the_moment():
    (a,), bucket = bucket_of(1, 5)
    optimizer = torch.optim.SGD([a], lr=0.1)
    (stretch,) = stretches(bucket, optimizer)
    optimizer.param_groups[0]["lr"] = 0.2
    assert stretch.options(optimizer)["lr"] == 0.2
    optimizer.load_state_dict(torch.optim.SGD([a], lr=0.3).state_dict())
    assert stretch.options(optimizer)["lr"] == 0.3


def test_a_group_that_was_split_since_is_two():
    (a, b), bucket = bucket_of(1, 5, 7)
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    assert stretches(bucket, optimizer) == [Stretch(0, 0, 12)]
    optimizer.param_groups[0]["params"] = [a]
    optimizer.add_param_group({"params": [b]})
    assert stretches(bucket, optimizer) == [Stretch(1, 0, 7), Stretch(0, 7, 12)]


def test_a_parameter_without_a_group_is_refused():
    (a, _), bucket = bucket_of(1, 5, 7)
    with pytest.raises(ValueError, match=r"shape \(7,\) is not in the optimizer"):
        stretches(bucket, torch.optim.SGD([a]))
