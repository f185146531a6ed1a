"""MinMaxUInt8: a chunk of floats as one byte an element and its own (min, max).

`kernels.minmax_uint8.reference` gives the formula, the wire format, and what becomes of NaN,
infinity and overflow. Every device gives the same bytes.

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

import torch
from torch import Tensor

from kernels import dispatch
from kernels.dispatch import backend, output, rows, stacked_rows
from kernels.minmax_uint8.reference import wire_bytes

__all__ = ["average", "compress", "decompress", "decompress_mean", "load", "wire_bytes"]

_CODEC, _NAME = "minmax_uint8", "MinMaxUInt8"


def load(device: torch.device | str) -> None:
    """Load or compile the MinMaxUInt8 kernels for `device` now, so that no first call waits."""
    dispatch.load(_CODEC, device)


def compress(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Encode `x` [..., n], where every slice x[..., :] is a chunk with its own range.

    Returns a payload uint8 [..., wire_bytes(n)] on the device of `x`: `out` if given, which must be
    contiguous. A large new tensor costs more (page faults) than the compression itself. Padding
    that a caller adds to fill a chunk should repeat an element of it: zeros may widen its range.

    Raises:
        ValueError: `x` is not float32, float16 or bfloat16, or has no dimension, or `out` does not
            fit.
    """
    return dispatch.encode(_CODEC, _NAME, x, wire_bytes, out)


def decompress(
    payload: Tensor,
    n: int,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Decode a payload uint8 [..., wire_bytes(n)] to [..., n] of `dtype`, on the payload's device.

    Returns `out` if given, which must be contiguous. The 16-bit types add their own rounding, of
    numbers that are clamped to (mn, mx) first.

    Raises:
        ValueError: the payload's type or last dimension is wrong, `n` is negative, `dtype` is not
            float32, float16 or bfloat16, or `out` does not fit.
    """
    dispatch.check_dtype(_NAME, dtype)
    return dispatch.decode(_CODEC, _NAME, payload, n, wire_bytes, out, dtype=dtype)


def decompress_mean(payloads: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """Decode N payloads uint8 [..., N, wire_bytes(n)] of a chunk each, to their mean, float32
    [..., n]: summed in float32 from the first to the last, then divided by N.

    Returns `out` if given, which must be contiguous. Raises `ValueError` as `decompress` does, and
    for N = 0.
    """
    return dispatch.decode_mean(_CODEC, _NAME, payloads, n, wire_bytes, out)


def average(payloads: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """What `compress` makes of `decompress_mean`, [..., N, wire_bytes(n)] -> [..., wire_bytes(n)],
    in one step. `out` and `ValueError` as there.
    """
    dispatch.check_payload(_NAME, payloads, n, wire_bytes, stacked=True)
    shape = (*payloads.shape[:-2], wire_bytes(n))
    payload = output(out, shape, torch.uint8, payloads.device)
    if payload[..., :n].numel() == 0:
        return payload.zero_()
    backend(_CODEC, payload.device).average(stacked_rows(payloads), n, rows(payload))
    return payload
