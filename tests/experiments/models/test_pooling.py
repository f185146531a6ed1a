import pytest
import torch
from torch import nn
from torch.nn import functional

from experiments.models.pooling import HalvingMaxPool2d, PooledConv2d

SHAPES = [(3, 2, 28, 28), (2, 7, 9), (1, 1, 3, 2), (5, 64, 128, 33)]


def pooled_and_gradients(pool, images, weights):
    own = images.clone().requires_grad_()
    pooled = pool(own)
    (gradient,) = torch.autograd.grad(pooled, own, weights)
    return pooled.detach(), gradient


def assert_same_bits(ours, torchs):
    for own, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_have_the_bits_of_torchs(shape):
    images = torch.randint(-2, 3, shape).float()  # many of them equal
    images[..., 0, 0] = torch.nan
    images[..., 1, 1].fill_(-torch.inf)
    weights = torch.randn(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    ours = pooled_and_gradients(HalvingMaxPool2d(), images, weights)
    assert_same_bits(ours, pooled_and_gradients(nn.MaxPool2d(2), images, weights))
    with torch.no_grad():
        assert_same_bits([HalvingMaxPool2d()(images)], ours[:1])


@pytest.mark.parametrize("number", range(1, 16))
def test_of_several_nan_the_gradient_goes_where_torchs_goes(number):
    is_nan = torch.tensor([bool(number & 1 << place) for place in range(4)])
    images = torch.arange(4.0).where(~is_nan, torch.nan).view(1, 2, 2)
    weights = torch.ones(1, 1, 1)
    ours = pooled_and_gradients(HalvingMaxPool2d(), images, weights)
    assert_same_bits(ours, pooled_and_gradients(nn.MaxPool2d(2), images, weights))


def test_stacked_images_are_pooled_each_by_itself():
    stacked = torch.randn(2, 3, 4, 6, 5)
    weights = torch.randn(2, 3, 4, 3, 2)
    torchs = pooled_and_gradients(nn.MaxPool3d((1, 2, 2)), stacked, weights)
    for dim in range(5):

        def pool(images, dim=dim):
            return torch.func.vmap(HalvingMaxPool2d(), in_dims=dim)(images.movedim(0, dim))

        assert_same_bits(pooled_and_gradients(pool, stacked, weights), torchs)


@pytest.mark.parametrize(
    "images",
    [
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 4, dtype=torch.bfloat16),
        torch.randn(2, 3, 4, 4, dtype=torch.float64),
        torch.randn(2, 3, 4, 4, device="meta"),
    ],
)
def test_other_images_are_left_to_torch(images):
    ours, torchs = HalvingMaxPool2d()(images), nn.MaxPool2d(2)(images)
    assert (ours.dtype, ours.stride()) == (torchs.dtype, torchs.stride())
    assert images.is_meta or torch.equal(ours, torchs)


def test_it_compiles_in_one_graph():
    pool = torch.compile(HalvingMaxPool2d(), fullgraph=True, backend="eager")
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(pool(images), nn.MaxPool2d(2)(images))


CONVOLVED = [(5, 1, 28, 28), (3, 3, 7, 9), (2, 4, 5, 2), (1, 1, 2, 3), (2, 3, 33, 128)]


def convolved_and_pooled(images, weights):
    """By torch, in float64."""
    convolved = functional.conv2d(images.double(), weights.double(), padding=1)
    return functional.max_pool2d(convolved, 2)


def assert_close(ours, torchs):
    """Within the rounding of float32, of sums whose terms are of these sizes."""
    for own, other in zip(ours, torchs, strict=True):
        assert own.dtype == torch.float32
        atol = 1e-5 * other.abs().max().item()
        torch.testing.assert_close(own.double(), other, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("shape", CONVOLVED)
def test_values_and_gradients_are_those_of_a_convolution_and_a_pooling(shape, monkeypatch):
    layer, images = PooledConv2d(shape[1], 6), torch.randn(shape, requires_grad=True)
    exact = [x.detach().double().requires_grad_() for x in (images, layer.weight)]
    monkeypatch.setattr(nn.Conv2d, "forward", None)  # what it would fall back to
    pooled, expected = layer(images), convolved_and_pooled(*exact)
    gradient = torch.randn_like(pooled)
    ours = torch.autograd.grad(pooled, (images, layer.weight), gradient)
    torchs = torch.autograd.grad(expected, exact, gradient.double())
    assert_close([pooled, *ours], [expected, *torchs])
    with torch.no_grad():
        assert torch.equal(layer(images), pooled)


def test_of_equal_numbers_the_gradient_goes_where_torchs_goes():
    layer = PooledConv2d(1, 2)
    nn.init.dirac_(layer.weight)  # the first channel is the image, the second zero
    images = torch.randint(-2, 3, (3, 1, 6, 7)).float().requires_grad_()
    weights = torch.randn(3, 2, 3, 3)
    (own,) = torch.autograd.grad(layer(images), images, weights)
    (torchs,) = torch.autograd.grad(functional.max_pool2d(images, 2), images, weights[:, :1])
    torch.testing.assert_close(own, torchs, rtol=0, atol=0)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, 3), (2, 0), (None, 0), (0, None)])
def test_stacked_workers_are_convolved_each_by_itself(in_dims):
    num_workers = 3
    shapes = (4, 2, 5, 7), (6, 2, 3, 3)
    stacked = [
        torch.randn(shape) if dim is None else torch.randn(num_workers, *shape).movedim(0, dim)
        for shape, dim in zip(shapes, in_dims, strict=True)
    ]
    for x in stacked:
        x.requires_grad_()
    layer = PooledConv2d(2, 6)

    def compute(images, weight):
        return torch.func.functional_call(layer, {"weight": weight}, (images,))

    pooled = torch.func.vmap(compute, in_dims)(*stacked)
    exact = [x.detach().double().requires_grad_() for x in stacked]
    rows = [
        [x] * num_workers if dim is None else x.unbind(dim)
        for x, dim in zip(exact, in_dims, strict=True)
    ]
    expected = torch.stack([convolved_and_pooled(*row) for row in zip(*rows, strict=True)])
    gradient = torch.randn_like(pooled)
    ours = torch.autograd.grad(pooled, stacked, gradient)
    assert_close(
        [pooled, *ours], [expected, *torch.autograd.grad(expected, exact, gradient.double())]
    )


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_its_bits_do_not_depend_on_the_number_of_threads(num_threads):
    layer, images = PooledConv2d(1, 16), torch.randn(96, 1, 28, 28)
    gradient, before = torch.randn(96, 16, 14, 14), torch.get_num_threads()

    def computed():
        pooled = layer(images)
        return [pooled, *torch.autograd.grad(pooled, layer.weight, gradient)]

    try:
        torch.set_num_threads(1)
        alone = computed()
        torch.set_num_threads(num_threads)
        assert_same_bits(computed(), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_convolutions_are_left_to_torch(channels, autocast, dtype):
    layer = PooledConv2d(channels, 6).to(dtype)
    images = torch.randn(2, channels, 4, 4, dtype=dtype)
    with torch.autocast("cpu", enabled=autocast):
        ours = layer(images)
        torchs = functional.max_pool2d(functional.conv2d(images, layer.weight, padding=1), 2)
    assert ours.dtype == torchs.dtype
    is_ours = channels <= PooledConv2d.FEW_CHANNELS and not autocast and dtype == torch.float32
    torch.testing.assert_close(ours, torchs, **({} if is_ours else {"rtol": 0, "atol": 0}))


def test_a_pooled_convolution_compiles_in_one_graph_and_has_shapes_without_data():
    layer, images = PooledConv2d(1, 6), torch.randn(2, 1, 4, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), layer(images))
    assert layer.to("meta")(images.to("meta")).shape == (2, 6, 2, 2)


@pytest.mark.parametrize("layer", [HalvingMaxPool2d(), PooledConv2d(1, 6)])
def test_where_nothing_is_left_of_images_torch_says_so(layer):
    with pytest.raises(RuntimeError, match="too small"):
        layer(torch.randn(2, 1, 4, 1))
    assert layer(torch.randn(0, 1, 4, 4)).shape[0] == 0
