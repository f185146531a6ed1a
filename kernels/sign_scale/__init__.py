"""SignScale: one bit an element and the chunk's mean magnitude.

`kernels.sign_scale.reference` gives the formula, the wire format, and what becomes of NaN and
infinity. Every device gives the same bytes. The one exception is a scale's last bit where the order
of a float64 sum decides a tie.
"""

import torch
from torch import Tensor

from kernels import dispatch
from kernels.dispatch import backend, output, rows
from kernels.sign_scale.reference import wire_bytes

__all__ = [
    "compress",
    "compress_with_feedback",
    "decompress",
    "decompress_mean",
    "load",
    "wire_bytes",
]

_CODEC, _NAME = "sign_scale", "SignScale"


def load(device: torch.device | str) -> None:
    """Load or compile the SignScale kernels for `device` now, so that no first call waits."""
    dispatch.load(_CODEC, device)


def compress(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Encode `x` [..., n], where every slice x[..., :] is a chunk with its own scale.

    Returns a payload uint8 [..., wire_bytes(n)] on the device of `x`: `out` if given, which must be
    contiguous.

    Raises:
        ValueError: `x` is not float32, float16 or bfloat16, or has no dimension, or `out` does not
            fit.
    """
    return dispatch.encode(_CODEC, _NAME, x, wire_bytes, out)


def compress_with_feedback(x: Tensor, residual: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Encode residual + x as `compress` does, and leave in `residual`, float32 [..., n] and
    contiguous, what the code lost; what is not finite becomes 0 there.

    Raises:
        ValueError: as `compress`, or `residual` does not fit.
    """
    dispatch.check_chunks(_NAME, x)
    payload = output(out, (*x.shape[:-1], wire_bytes(x.shape[-1])), torch.uint8, x.device)
    residual = output(residual, tuple(x.shape), torch.float32, x.device, "residual")
    if x.numel() == 0:
        return payload.zero_()
    backend(_CODEC, x.device).compress_with_feedback(rows(x), rows(residual), rows(payload))
    return payload


def decompress(payload: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """Decode a payload uint8 [..., wire_bytes(n)] to float32 [..., n], on the payload's device.

    Returns `out` if given, which must be contiguous.

    Raises:
        ValueError: the payload's type or last dimension is wrong, `n` is negative, or `out` does
            not fit.
    """
    return dispatch.decode(_CODEC, _NAME, payload, n, wire_bytes, out)


def decompress_mean(payloads: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """Decode N payloads uint8 [..., N, wire_bytes(n)] of a chunk each, to their mean, float32
    [..., n]: summed in float32 from the first to the last, then divided by N.

    Returns `out` if given, which must be contiguous. Raises `ValueError` as `decompress` does, and
    for N = 0.
    """
    return dispatch.decode_mean(_CODEC, _NAME, payloads, n, wire_bytes, out)
