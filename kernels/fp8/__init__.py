"""Fp8: every element as an 8-bit float, over a scale that makes the chunk fit.

`kernels.fp8.reference` gives the formula, the wire format, and what becomes of NaN and infinity.
Every device gives the same bytes.
"""

import torch
from torch import Tensor

from kernels import dispatch
from kernels.fp8.reference import WIRE_DTYPES, wire_bytes

__all__ = ["WIRE_DTYPES", "compress", "decompress", "decompress_mean", "load", "wire_bytes"]

_CODEC, _NAME = "fp8", "fp8"


def load(device: torch.device | str) -> None:
    """Load or compile the fp8 kernels for `device` now, so that no first call waits."""
    dispatch.load(_CODEC, device)


def compress(x: Tensor, wire: str, *, out: Tensor | None = None) -> Tensor:
    """Encode `x` [..., n] in the type `wire` (a key of `WIRE_DTYPES`), where every slice x[..., :]
    is a chunk with its own scale.

    Returns a payload uint8 [..., wire_bytes(n)] on the device of `x`: `out` if given, which must be
    contiguous.

    Raises:
        ValueError: there is no such `wire`, `x` is not float32, float16 or bfloat16, or has no
            dimension, or `out` does not fit.
    """
    _check_wire(wire)
    return dispatch.encode(_CODEC, _NAME, x, wire_bytes, out, wire)


def decompress(payload: Tensor, n: int, wire: str, *, out: Tensor | None = None) -> Tensor:
    """Decode a payload uint8 [..., wire_bytes(n)] to float32 [..., n], on the payload's device.

    Returns `out` if given, which must be contiguous.

    Raises:
        ValueError: there is no such `wire`, the payload's type or last dimension is wrong, `n` is
            negative, or `out` does not fit.
    """
    _check_wire(wire)
    return dispatch.decode(_CODEC, _NAME, payload, n, wire_bytes, out, wire)


def decompress_mean(payloads: Tensor, n: int, wire: str, *, out: Tensor | None = None) -> Tensor:
    """Decode N payloads uint8 [..., N, wire_bytes(n)] of a chunk each, to their mean, float32
    [..., n]: summed in float32 from the first to the last, then divided by N.

    Returns `out` if given, which must be contiguous. Raises `ValueError` as `decompress` does, and
    for N = 0.
    """
    _check_wire(wire)
    return dispatch.decode_mean(_CODEC, _NAME, payloads, n, wire_bytes, out, wire)


def _check_wire(wire: str) -> None:
    if wire not in WIRE_DTYPES:
        raise ValueError(f"wire must be one of {', '.join(WIRE_DTYPES)}, got {wire!r}")
