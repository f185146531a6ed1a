"""Fp8 for CPU tensors, by Numba, without the GIL, on as many threads as torch uses.

Importing this module compiles the kernels, or loads them from Numba's cache. The functions have the
names and arguments of `kernels.fp8.reference`; outputs are contiguous.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.fp8.reference import WIRE_DTYPES
from kernels.jit import PIECE, from_bits, jit, num_pieces, numbers, place, to_bits, widen
from kernels.shared.magnitudes_cpu import find_magnitudes
from kernels.shared.narrow_cpu import round_magnitude
from kernels.threads import share_pieces

_CODES = 4  # where the codes start in a payload
_SIGN, _CODE_MAGNITUDE = np.int32(0x80), np.int32(0x7F)
_INFINITY, _UNIT_EXPONENT = np.int32(0x7F800000), np.int32(254)
_MANTISSA_BITS, _TO_BYTE = np.int32(23), np.int32(24)

# Bits of the mantissa, bias of the exponent.
_FORMATS = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}
_FIRST_SPECIAL = {"fp8_e4m3": 0x7F, "fp8_e5m2": 0x7C}  # from which on codes are infinite or NaN
_MAX = {wire: np.float32(torch.finfo(dtype).max) for wire, dtype in WIRE_DTYPES.items()}


def compress(chunks: Tensor, payload: Tensor, wire: str) -> None:
    """Encode [chunks, n], n >= 1, as `wire` into `payload`, uint8 [chunks, wire_bytes(n)]."""
    x, codes, (num_rows, n) = numbers(chunks), payload.numpy(), chunks.shape
    magnitudes = np.empty((num_rows, num_pieces(n)), np.float32)
    share_pieces(find_magnitudes, (x, magnitudes, PIECE), x.shape)
    with np.errstate(invalid="ignore"):  # a NaN that signals
        scales = np.maximum(magnitudes.max(1) / _MAX[wire], np.finfo(np.float32).tiny)
    scales[~np.isfinite(scales)] = np.nan
    codes[:, :_CODES] = scales[:, None].view(np.uint8)
    codes[:, _CODES + n :] = 0
    share_pieces(_encode, (x, scales, codes, *_FORMATS[wire]), x.shape)


def decompress(payload: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks, wire)


def decompress_mean(payloads: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    codes, means = payloads.contiguous().numpy(), chunks.numpy()
    # A copy, because the payload may start at an address that float32 does not allow.
    scales = np.ascontiguousarray(codes[..., :_CODES]).view(np.float32)[..., 0]
    wire_format = (*_FORMATS[wire], _FIRST_SPECIAL[wire])
    share_pieces(_decode_mean, (scales, codes, means, *wire_format), means.shape)


@jit("void({x}[:, ::1], float32[::1], uint8[:, ::1], int64, int64, int64, int64)")
def _encode(chunks, scales, payload, mantissa_bits, bias, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk, codes = chunks[row, start:stop], payload[row, _CODES + start : _CODES + stop]
        if np.isnan(scales[row]):
            codes[:] = 0
            continue
        for i in range(chunk.size):
            x = widen(chunk[i]) / scales[row]
            sign = np.int32(np.int32(to_bits(x) >> _TO_BYTE) & _SIGN)
            codes[i] = np.uint8(round_magnitude(x, mantissa_bits, bias) | sign)


@jit("float32(uint8, int64, int64, int64)")
def _decode(code, mantissa_bits, bias, first_special):
    """Moves exponent and mantissa into place; the product mends the bias, also of subnormals."""
    magnitude = np.int32(np.int32(code) & _CODE_MAGNITUDE)
    bits = np.int32(magnitude << np.int32(_MANTISSA_BITS - np.int32(mantissa_bits)))
    unit = from_bits(np.int32(np.int32(_UNIT_EXPONENT - np.int32(bias)) << _MANTISSA_BITS))
    x = from_bits(bits) * unit
    if magnitude >= first_special:
        x = from_bits(np.int32(bits | _INFINITY))
    return -x if code & _SIGN else x


@jit("void(float32[:, ::1], uint8[:, :, ::1], float32[:, ::1], int64, int64, int64, int64, int64)")
def _decode_mean(scales, payloads, chunks, mantissa_bits, bias, first_special, first, last):
    num_codes = payloads.shape[1]
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk = chunks[row, start:stop]
        for j in range(num_codes):
            codes, scale = payloads[row, j, _CODES + start : _CODES + stop], scales[row, j]
            if j == 0:
                for i in range(chunk.size):
                    chunk[i] = _decode(codes[i], mantissa_bits, bias, first_special) * scale
            else:
                for i in range(chunk.size):
                    chunk[i] += _decode(codes[i], mantissa_bits, bias, first_special) * scale
        if num_codes > 1:
            for i in range(chunk.size):
                chunk[i] /= np.float32(num_codes)
