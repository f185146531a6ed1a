import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bagua_algos.communication.primitives import CHUNK_ALIGNMENT
from bagua_algos.engine.bucket import build_buckets, flat_storage, lay_out

SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3), min_size=1, max_size=8)


def parameters_of(shapes, num_held=1):
    """Every element has a value of its own."""
    start, parameters = 0, []
    for shape in shapes:
        held = [num_held, *shape] if num_held > 1 else shape
        numel = int(torch.Size(held).numel())
        values = torch.arange(start, start + numel, dtype=torch.float32)
        parameters.append(nn.Parameter(values.reshape(held)))
        start += numel
    return parameters


@given(
    shapes=SHAPES,
    num_held=st.sampled_from([1, 3]),
    world_size=st.integers(1, 5),
    bucket_bytes=st.integers(1, 400),
)
def test_every_element_is_packed_exactly_once(shapes, num_held, world_size, bucket_bytes):
    world_size = num_held if num_held > 1 else world_size
    parameters = parameters_of(shapes, num_held)
    before = [p.detach().clone() for p in parameters]
    buckets = build_buckets(
        parameters, num_held=num_held, world_size=world_size, bucket_bytes=bucket_bytes
    )
    packed = torch.cat([b.weights[:, : b.numel].flatten() for b in buckets])
    expected = torch.cat([p.flatten() for p in before])
    assert torch.equal(packed.sort().values, expected.sort().values)
    for parameter, original in zip(parameters, before, strict=True):
        assert torch.equal(parameter, original)
    for index, bucket in enumerate(buckets):
        assert bucket.index == index
        assert bucket.weights.shape == bucket.gradients.shape
        assert bucket.weights.shape[0] == num_held
        assert bucket.weights.shape[1] % (world_size * CHUNK_ALIGNMENT) == 0
        assert bucket.weights[:, bucket.numel :].eq(0).all()


def test_parameters_are_views_of_their_bucket():
    parameters = parameters_of([[3, 5], [7]])
    (bucket,) = build_buckets(parameters, num_held=1, world_size=2, bucket_bytes=1 << 20)
    bucket.weights.fill_(2.0)
    assert all(p.eq(2).all() for p in parameters)
    for view in bucket.gradient_views():
        view.fill_(3.0)
    assert bucket.gradients[:, : bucket.numel].eq(3).all()
    assert bucket.gradients[:, bucket.numel :].eq(0).all()


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (1, ["c", "b", "a"]),
        (40, ["c", "b", "a"]),
        (41, ["cb", "a"]),
        (80, ["cb", "a"]),
        (81, ["cba"]),
    ],
)
def test_a_bucket_closes_once_it_is_full_and_the_last_parameter_comes_first(bucket_bytes, expected):
    """Each has 40 bytes."""
    parameters = parameters_of([[10], [10], [10]])
    names = {id(parameter): name for parameter, name in zip(parameters, "abc", strict=True)}
    buckets = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=bucket_bytes)
    found = ["".join(names[id(p)] for p in bucket.parameters) for bucket in buckets]
    assert found == expected


def test_weights_and_gradients_whose_channels_are_last_stay_so_in_a_bucket():
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    plain = [torch.randn(shape) for shape in ((2, 3), (2, 3, 4, 5), (6, 5, 1, 1), (2, 3, 4, 5, 6))]
    last = [x.contiguous(memory_format=formats[x.dim()]) for x in plain if x.dim() in formats]
    turned = torch.randn(4, 3, 2, 5).transpose(0, 2)  # neither, and so it becomes plain
    parameters = [nn.Parameter(x) for x in (*plain, *last, turned)]
    strides = [p.stride() for p in parameters[:-1]] + [turned.contiguous().stride()]
    before = [(p.detach().clone(), s) for p, s in zip(parameters, strides, strict=True)]
    (bucket,) = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=1 << 20)
    for parameter, (values, stride) in zip(parameters, before, strict=True):
        assert torch.equal(parameter, values) and parameter.stride() == stride
    for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True):
        assert view.shape == parameter.shape and view.stride() == parameter.stride()


def test_channels_are_last_of_no_worker_of_several():
    """Their weights are one tensor of a dimension more."""
    x_w = torch.randn(3, 2, 4, 5)
    parameter = nn.Parameter(x_w.contiguous(memory_format=torch.channels_last))
    build_buckets([parameter], num_held=3, world_size=3, bucket_bytes=1 << 20)
    assert torch.equal(parameter, x_w) and parameter[0].is_contiguous()


def test_a_bucket_has_no_more_columns_than_an_aligned_chunk_a_worker_takes():
    unit = 3 * CHUNK_ALIGNMENT
    sizes = {0: unit, 1: unit, unit: unit, unit + 1: 2 * unit, 2 * unit: 2 * unit}
    for size, expected in sizes.items():
        parameters = [nn.Parameter(torch.zeros(size))]
        (bucket,) = build_buckets(parameters, num_held=1, world_size=3, bucket_bytes=1)
        assert bucket.weights.shape == bucket.gradients.shape == (1, expected)
        assert bucket.weights.untyped_storage().nbytes() == 2 * expected * 4


def test_buckets_are_laid_out_where_their_parameters_are_or_on_another_device():
    parameters = [nn.Parameter(torch.zeros(2, device=device)) for device in ("cpu", "meta")]
    groups, phases = [(p,) for p in parameters], dict.fromkeys(parameters, 0)
    here, there = lay_out(groups, phases, world_size=1)
    assert (here.weights.device.type, there.weights.device.type) == ("cpu", "meta")
    for bucket in lay_out(groups, phases, world_size=1, device=torch.device("meta")):
        assert bucket.weights.is_meta and bucket.gradients.is_meta


@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_the_memory_of_one_workers_parameters_is_flat_and_that_of_several_is_not(num_held):
    parameters = parameters_of([[2], [3]], num_held)
    buckets = build_buckets(parameters, num_held=num_held, world_size=num_held, bucket_bytes=1)
    flats = flat_storage(buckets)
    assert len(flats) == (4 if num_held == 1 else 0)
    for number, flat in enumerate(flats):
        flat.fill_(number)
    if flats:
        assert [parameter.tolist() for parameter in parameters] == [[2, 2], [0, 0, 0]]
        views = [view.tolist() for bucket in buckets for view in bucket.gradient_views()]
        assert views == [[1, 1, 1], [3, 3]]


def test_dtypes_do_not_share_a_bucket():
    parameters = [nn.Parameter(torch.zeros(4, dtype=d)) for d in (torch.float32, torch.bfloat16)]
    buckets = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=1 << 20)
    assert [b.weights.dtype for b in buckets] == [torch.bfloat16, torch.float32]


def test_frozen_parameters_stay_outside():
    free, frozen = parameters_of([[2], [3]])
    frozen.requires_grad_(False)
    (bucket,) = build_buckets([free, frozen], num_held=1, world_size=1, bucket_bytes=1 << 20)
    assert bucket.parameters == (free,)


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter"):
        build_buckets([], num_held=1, world_size=1, bucket_bytes=1 << 20)


def test_a_bucket_of_no_bytes_is_refused():
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, got 0"):
        build_buckets(parameters_of([[1]]), num_held=1, world_size=1, bucket_bytes=0)
