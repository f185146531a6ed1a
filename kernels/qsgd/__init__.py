"""QSGD: 2, 4 or 8 bits an element, rounded at random so that the code is right in the mean.

`kernels.qsgd.reference` gives the formula, the wire format, and what becomes of NaN and infinity.
Every device gives the same bytes: what an element draws is a function of its place
(`kernels.shared.philox_reference`).
"""

from functools import partial

import torch
from torch import Tensor

from kernels import dispatch
from kernels.qsgd.reference import wire_bytes
from kernels.shared.philox_reference import Key

__all__ = ["compress", "decompress", "decompress_mean", "load", "wire_bytes"]

_CODEC, _NAME = "qsgd", "QSGD"


def load(device: torch.device | str) -> None:
    """Load or compile the QSGD kernels for `device` now, so that no first call waits."""
    dispatch.load(_CODEC, device)


def compress(
    x: Tensor,
    streams: Tensor,
    key: Key,
    *,
    bits: int,
    group_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """Encode `x` [w, ..., n], where every slice x[..., :] is a chunk, in groups of `group_size`
    elements with a norm each. Worker i draws the numbers of `streams[i]`, int64 [w, 3] of 32 bits
    each, and `key`, two times 32 bits; element j of all its elements draws the j-th.

    Returns a payload uint8 [w, ..., wire_bytes(n, bits, group_size)] on the device of `x`: `out` if
    given, which must be contiguous.

    Raises:
        ValueError: `bits` is not 2, 4 or 8, or a group empty, `x` is not float32, float16 or
            bfloat16, there is not one stream for each worker, `key` has more than 32 bits, or `out`
            does not fit.
    """
    size = _size(bits, group_size)
    if x.dim() < 2 or streams.shape != (len(x), 3) or streams.dtype != torch.int64:
        raise ValueError(
            f"x [w, ..., n] needs streams int64 [w, 3], got {list(x.shape)} and {streams.dtype} "
            f"{list(streams.shape)}"
        )
    if not all(0 <= word < 2**32 for word in key):
        raise ValueError(f"key must be two numbers in [0, 2^32), got {key}")
    return dispatch.encode(_CODEC, _NAME, x, size, out, streams, key, bits, group_size)


def decompress(
    payload: Tensor, n: int, *, bits: int, group_size: int, out: Tensor | None = None
) -> Tensor:
    """Decode a payload uint8 [..., wire_bytes(n, bits, group_size)] to float32 [..., n], on the
    payload's device.

    Returns `out` if given, which must be contiguous.

    Raises:
        ValueError: `bits` is not 2, 4 or 8, or a group empty, the payload's type or last dimension
            is wrong, `n` is negative, or `out` does not fit.
    """
    size = _size(bits, group_size)
    return dispatch.decode(_CODEC, _NAME, payload, n, size, out, bits, group_size)


def decompress_mean(
    payloads: Tensor, n: int, *, bits: int, group_size: int, out: Tensor | None = None
) -> Tensor:
    """Decode N payloads uint8 [..., N, wire_bytes(n, bits, group_size)] of a chunk each, to their
    mean, float32 [..., n]: summed in float32 from the first to the last, then divided by N.

    Returns `out` if given, which must be contiguous. Raises `ValueError` as `decompress` does, and
    for N = 0.
    """
    size = _size(bits, group_size)
    return dispatch.decode_mean(_CODEC, _NAME, payloads, n, size, out, bits, group_size)


def _size(bits: int, group_size: int) -> dispatch.WireBytes:
    if bits not in (2, 4, 8):
        raise ValueError(f"bits must be 2, 4 or 8, got {bits}")
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}")
    return partial(wire_bytes, bits=bits, group_size=group_size)
