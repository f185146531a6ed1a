import pytest
import torch
from torch import nn

from experiments.models.pooling import HalvingMaxPool2d


@pytest.mark.parametrize("shape", [(3, 2, 28, 28), (2, 7, 9), (1, 1, 3, 2), (2, 3, 4, 5, 6)])
def test_without_gradients_it_has_the_bits_of_torchs(shape):
    images = torch.randn(shape).relu()
    images.view(-1)[0] = torch.nan
    expected = nn.MaxPool2d(2)(images.reshape(-1, *shape[-3:])).reshape(*shape[:-2], -1)
    with torch.no_grad():
        pooled = HalvingMaxPool2d()(images)
    torch.testing.assert_close(pooled.flatten(-2), expected, rtol=0, atol=0, equal_nan=True)


def test_gradients_are_those_of_torchs_where_numbers_are_equal():
    images = torch.ones(2, 1, 4, 4)
    gradients = []
    for pool in (nn.MaxPool2d(2), HalvingMaxPool2d()):
        own = images.clone().requires_grad_()
        (pool(own) * torch.arange(8.0).view(2, 1, 2, 2)).sum().backward()
        gradients.append(own.grad)
    assert torch.equal(*gradients)
