import pytest
import torch
from torch import nn

from experiments.models.pooling import HalvingMaxPool2d

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
