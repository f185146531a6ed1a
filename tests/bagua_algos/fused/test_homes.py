"""What is neighbours in memory is one tensor, and is not copied."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bagua_algos import fuse_optimizer
from bagua_algos.engine.bucket import Bucket, build_buckets
from bagua_algos.fused.fuse import fuse_in
from bagua_algos.fused.homes import Homes

MEMORY = torch.arange(60.0)
BEFORE, FIRST, BETWEEN, SECOND, BEHIND = MEMORY.split([10, 20, 5, 15, 10])


TOGETHER = {
    "a home": ([FIRST], FIRST),
    "a part of one": ([FIRST[3:9].view(2, 3)], FIRST[3:9]),
    "both halves": ([FIRST[:4], FIRST[4:20]], FIRST),
    "of unlike shapes": ([SECOND[2:8].view(3, 2), SECOND[8:9], SECOND[9:15]], SECOND[2:15]),
    "in another order": ([FIRST[4:8], FIRST[:4]], None),
    "with a gap": ([FIRST[:4], FIRST[5:]], None),
    "turned": ([FIRST[:6].view(2, 3).T, FIRST[6:]], None),
    "half behind a home": ([FIRST[10:], BETWEEN], None),
    "half before one": ([BETWEEN[4:], SECOND], None),
    "half behind the last": ([SECOND[14:], BEHIND[:1]], None),
    "half before the first": ([BEFORE, FIRST], None),
    "before the first": ([BEFORE], None),
    "behind the last": ([BEHIND], None),
    "of another type": ([FIRST[:4].view(torch.int32), FIRST[4:8].view(torch.int32)], None),
}


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parts_that_follow_each_other_in_one_home_are_one(name, order):
    parts, expected = TOGETHER[name]
    homes = Homes()
    for place in order:
        homes.add((FIRST, SECOND)[place])
    found = homes.together(parts)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.data_ptr(), found.shape) == (expected.data_ptr(), expected.shape)


seen: list[int] = []
"""Where gradients were in the last steps."""


class Looking(torch.optim.SGD):
    """Notes where the gradients are that it is given."""

    def step(self, closure=None):
        seen.extend(p.grad.data_ptr() for group in self.param_groups for p in group["params"])
        return super().step(closure)


def in_a_bucket(optimizer_of) -> tuple[Bucket, torch.optim.Optimizer]:
    """Four square matrices, fused in one bucket."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 4)) for _ in range(4)]
    optimizer = fuse_optimizer(optimizer_of(parameters, lr=0.1))
    [bucket] = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=1 << 20)
    fuse_in([bucket], optimizer, agree=False)
    for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True):
        parameter.grad = view
    return bucket, optimizer


@pytest.mark.parametrize(("num_shared", "num_moved"), [(0, 2), (1, 0)])
def test_memory_that_ends_where_other_memory_begins_is_not_shared(num_shared, num_moved):
    """A script's own arrays, as parameters: what others have too is not moved."""
    array = np.arange(8, dtype=np.float32)
    halves = array[:4], array[4 - num_shared :]
    parameters = [nn.Parameter(torch.from_numpy(half)) for half in halves]
    optimizer = fuse_optimizer(torch.optim.SGD(parameters, lr=1.0))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    places = [p.data_ptr() != half.ctypes.data for p, half in zip(parameters, halves, strict=True)]
    assert sum(places) == num_moved


def test_gradients_that_are_neighbours_are_not_copied():
    bucket, optimizer = in_a_bucket(Looking)
    for _ in range(3):
        seen.clear()
        optimizer.step()
        assert seen == [bucket.gradients.data_ptr()]


def test_a_gradient_that_is_turned_in_its_place_counts_as_it_is_then():
    bucket, optimizer = in_a_bucket(torch.optim.SGD)
    turned: Tensor = bucket.parameters[1].grad
    for is_turned in (False, True, False, True):
        bucket.gradients.normal_()
        bucket.parameters[1].grad = turned.T if is_turned else turned
        expected = [p.detach() - 0.1 * p.grad for p in bucket.parameters]
        optimizer.step()
        assert all(torch.allclose(p, x) for p, x in zip(bucket.parameters, expected, strict=True))
