"""Kernels in a script that has called `torch.set_default_dtype`: the same numbers, bit for bit."""

import pytest
import torch
from torch import Tensor

from kernels import max_pool, pooled_convolution
from kernels.shared.philox_reference import uniforms
from tests.kernels.backends import (
    KEY,
    MINMAX,
    NUM_ROWS,
    STREAMS,
    Backend,
    Codec,
    every_backend,
    every_codec,
)
from tests.torch_defaults import OTHER_DTYPES, default_dtype

every_other_dtype = pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
N = 5000


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)


def coded(backend: Backend, codec: Codec, x: Tensor) -> list[Tensor]:
    """Codes, decoded chunks and means, and of MinMaxUInt8 the codes of means."""
    payload = backend.compress(codec, x)
    payloads = payload.unflatten(0, (-1, 2))
    found = [payload, backend.decompress(codec, payload, N)]
    found.append(backend.decompress_mean(codec, payloads, N))
    return [*found, backend.average(codec, payloads, N)] if codec == MINMAX else found


@every_other_dtype
@every_codec
@every_backend
def test_codes_do_not_depend_on_it(backend: Backend, codec: Codec, dtype: torch.dtype) -> None:
    x = numbers(NUM_ROWS, N)
    expected = coded(backend, codec, x)
    with default_dtype(dtype):
        found = coded(backend, codec, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_other_dtype
def test_draws_are_float32(dtype: torch.dtype) -> None:
    expected = uniforms(1000, STREAMS, KEY)
    with default_dtype(dtype):
        found = uniforms(1000, STREAMS, KEY)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_other_dtype
def test_images_are_pooled_in_float32(dtype: torch.dtype) -> None:
    images = numbers(2, 6, 4)
    with default_dtype(dtype):
        pooled, places = max_pool.pool(images)
        spread = max_pool.spread(pooled, places, images.shape)
    torch.testing.assert_close(pooled, torch.nn.functional.max_pool2d(images, 2), rtol=0, atol=0)
    torch.testing.assert_close(spread, images.where(spread != 0, 0.0), rtol=0, atol=0)
    assert (spread != 0).sum() == pooled.numel()


@every_other_dtype
def test_images_are_convolved_in_float32(dtype: torch.dtype) -> None:
    images, weights = numbers(2, 3, 1, 6, 4), numbers(2, 5, 1, 3, 3)

    def computed() -> tuple[torch.Tensor, ...]:
        framed = pooled_convolution.bordered(images)
        pooled, places = pooled_convolution.pool_convolved(framed, weights)
        own = pooled_convolution.gradients_of_weights(pooled, places, framed)
        return pooled, places, own

    expected = computed()
    with default_dtype(dtype):
        torch.testing.assert_close(computed(), expected, rtol=0, atol=0)
