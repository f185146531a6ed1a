"""Rounding to 16 bits inside CPU kernels against torch's own."""

import numba
import pytest
import torch
from torch import Tensor

from kernels.jit import numbers
from kernels.shared.narrow_cpu import narrow

every_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@numba.njit
def narrow_all(x, y):
    for i in range(x.size):
        y[0, i] = narrow(x[i], y.dtype)


def assert_narrowed_as_by_torch(x: Tensor, dtype: torch.dtype) -> None:
    ours = torch.empty(1, len(x), dtype=dtype)
    narrow_all(x.numpy(), numbers(ours))
    torch.testing.assert_close(ours[0], x.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours[0].signbit(), x.signbit())


@every_dtype
def test_numbers_of_16_bits_and_what_lies_around_half_way_between_two(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    ordered = every[every.isfinite()].sort().values
    half_way = (ordered[1:] + ordered[:-1]) / 2
    above, below = (half_way.nextafter(torch.tensor(end)) for end in (torch.inf, -torch.inf))
    assert_narrowed_as_by_torch(torch.cat([every, half_way, above, below]), dtype)


@every_dtype
def test_any_bits_of_a_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator)
    edges = [65504.0, 65519.99, 65520.0, 1e38, torch.inf, torch.nan, 2.0**-25, 1e-45, 0.0]
    x = torch.cat([bits.to(torch.int32).view(torch.float32), torch.tensor(edges)])
    assert_narrowed_as_by_torch(torch.cat([x, -x]), dtype)
