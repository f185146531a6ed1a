"""MinMaxUInt8: a chunk of floats as one byte an element and its own (min, max).

The formula, the wire format and what is done about NaN, infinity and overflow are those of
`kernels.minmax_uint8_reference`. Every device gives the same bytes.

Error of one element x of an encoded chunk that decodes to float32:

    |decoded - x| <= (1/2 + 1e-4) * step + 2^-22 * m
    step = (mx - mn + 1e-7) / 255,  m = max(|mn|, |mx|)

The first term is the quantiser's. The second is four float32 roundings at levels as large as
m / step: of x * scale, of `lower`, of code + lower and of the quotient. (The middle two are exact
unless m / step exceeds 2^24; the 1e-4 covers the roundings of scale and of the 256 levels.) The
second rules where m / step > 2^21: a chunk so far from zero is kept to 2-4 ulps of m, whatever its
step. A constant chunk comes back within 2^-22 of its value and 2e-10. Zero comes back as zero where
mn <= 0 <= mx.

A chunk of one value beyond about 1.3e29 overflows in value * scale, and decodes to NaN.
"""

from types import ModuleType

import torch
from torch import Tensor

from kernels import minmax_uint8_reference
from kernels.minmax_uint8_reference import read_header, wire_bytes

__all__ = ["compress", "decompress", "load", "wire_bytes"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load(device: torch.device | str) -> None:
    """Load or compile the kernels of `device` now instead of at their first use.

    Call it before forking workers, which then share them. Further calls do nothing.
    """
    _backend(torch.device(device))


def compress(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Encode `x` [..., n], where every slice x[..., :] is a chunk with its own range.

    Returns a payload uint8 [..., wire_bytes(n)] on the device of `x`: `out` if given, which must be
    contiguous. A large new tensor costs more (page faults) than the compression itself. Padding
    that a caller adds to fill a chunk should repeat an element of it: zeros may widen its range.

    Raises:
        ValueError: `x` is not float32, float16 or bfloat16, or has no dimension, or `out` does not
            fit.
    """
    _check_dtype(x.dtype)
    if x.dim() == 0:
        raise ValueError("compress() needs a tensor [..., n], got a scalar; use x.reshape(1)")
    *batch, n = x.shape
    payload = _output(out, (*batch, wire_bytes(n)), torch.uint8, x.device)
    if n == 0:
        return payload.zero_()
    _backend(x.device).compress(_rows(x).float(), _rows(payload))
    return payload


def decompress(
    payload: Tensor,
    n: int,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Decode a payload uint8 [..., wire_bytes(n)] to [..., n] of `dtype`, on the payload's device.

    Returns `out` if given, which must be contiguous. The 16-bit types add their own rounding. For
    them the decoded numbers are first clamped to (mn, mx): the largest may lie half a step above
    mx, and would round to infinity there.

    Raises:
        ValueError: the payload's type or last dimension is wrong, `n` is negative, `dtype` is not
            float32, float16 or bfloat16, or `out` does not fit.
    """
    _check_dtype(dtype)
    _check_payload(payload, n)
    x = _output(out, (*payload.shape[:-1], n), dtype, payload.device)
    backend = _backend(payload.device)
    if dtype == torch.float32:
        backend.decompress(_rows(payload), _rows(x))
    else:
        wide = torch.empty_like(_rows(x), dtype=torch.float32)
        backend.decompress(_rows(payload), wide)
        _rows(x).copy_(wide.clamp_(*read_header(_rows(payload))))
    return x


def _rows(x: Tensor) -> Tensor:
    """View or copy [..., n] as [chunks, n]."""
    return x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])


def _output(
    out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if (out.shape, out.dtype, out.device) != (shape, dtype, device) or not out.is_contiguous():
        raise ValueError(
            f"out must be a contiguous {dtype} tensor of {list(shape)} on {device}, "
            f"got {out.dtype}, {list(out.shape)} on {out.device}, strides {out.stride()}"
        )
    return out


def _backend(device: torch.device) -> ModuleType:
    if device.type == "cpu":
        from kernels import minmax_uint8_cpu  # imports Numba, and compiles

        return minmax_uint8_cpu
    return minmax_uint8_reference


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise ValueError(f"MinMaxUInt8 takes float32, float16 or bfloat16, not {dtype}; convert it")


def _check_payload(payload: Tensor, n: int) -> None:
    if n < 0:
        raise ValueError(f"n is the number of elements in a chunk and cannot be {n}")
    if payload.dtype != torch.uint8:
        raise ValueError(f"a MinMaxUInt8 payload is uint8, not {payload.dtype}")
    if payload.dim() == 0 or payload.shape[-1] != wire_bytes(n):
        raise ValueError(
            f"a chunk of {n} elements has a payload of [..., {wire_bytes(n)}] bytes, "
            f"not {list(payload.shape)}; pass the n that was compressed"
        )
