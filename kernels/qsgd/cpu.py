"""QSGD for CPU tensors, by Numba, without the GIL, on as many threads as torch uses.

Importing this module compiles the kernels, or loads them from Numba's cache. The functions have the
names and arguments of `kernels.qsgd.reference`; outputs are contiguous.
"""

import numpy as np
from torch import Tensor

from kernels.jit import PIECE, jit, numbers, place, widen
from kernels.shared.bit_packing_cpu import pack, unpack
from kernels.shared.magnitudes_cpu import find_magnitudes
from kernels.shared.philox_cpu import draw_words
from kernels.shared.philox_reference import Key
from kernels.threads import share, share_pieces

_NORM_BYTES = 4
_WORDS = 4  # of random bits for one counter
_DROPPED_BITS, _DRAW_UNIT = np.uint32(8), np.float32(2.0**-24)


def compress(
    chunks: Tensor, payload: Tensor, streams: Tensor, key: Key, bits: int, group_size: int
) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes]: norms, then codes."""
    x, codes, (num_rows, n) = numbers(chunks), payload.numpy(), chunks.shape
    norms = np.empty((num_rows, -(-n // group_size)), np.float32)
    share(find_magnitudes, (x, norms, group_size), norms.size, x.size)
    norms[~np.isfinite(norms).all(1)] = np.nan
    start = _NORM_BYTES * norms.shape[1]
    codes[:, :start] = norms.view(np.uint8)
    codes[:, start + -(-n * bits // 8) :] = 0
    draws = (streams.contiguous().numpy(), num_rows // len(streams), *key)
    share_pieces(_encode, (x, norms, codes, *draws, bits, group_size), x.shape)


def decompress(payload: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, wire_bytes] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks, bits, group_size)


def decompress_mean(payloads: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, N, wire_bytes] to the mean of the N, in `chunks` [chunks, n]."""
    codes, means = payloads.contiguous().numpy(), chunks.numpy()
    header_bytes = _NORM_BYTES * -(-means.shape[1] // group_size)
    # A copy, because the payload may start at an address that float32 does not allow.
    norms = np.ascontiguousarray(codes[..., :header_bytes]).view(np.float32)
    share_pieces(_decode_mean, (norms, codes, means, bits, group_size), means.shape)


@jit("void({x}[::1], uint32[::1], float32, float32, uint8[::1])")
def _quantise(group, words, norm, s, codes):
    if np.isnan(norm):
        codes[:] = np.uint8(s)
        return
    divisor = norm if norm > 0 else np.float32(1)
    for i in range(group.size):
        x = widen(group[i])
        y = abs(x) / divisor * s
        floor = np.floor(y)
        # By way of int32, for which there are vector instructions.
        draw = np.float32(np.int32(words[i] >> _DROPPED_BITS)) * _DRAW_UNIT
        level = floor + np.float32(1) if draw < y - floor else floor
        codes[i] = np.uint8(np.int32(s + level if x >= 0 else s - level))


@jit(
    "void({x}[:, ::1], float32[:, ::1], uint8[:, ::1], int64[:, ::1],"
    " int64, int64, int64, int64, int64, int64, int64)"
)
def _encode(chunks, norms, payload, streams, per_worker, key0, key1, bits, group_size, first, last):
    codes, words = np.empty(PIECE, np.uint8), np.empty(PIECE + 2 * _WORDS, np.uint32)
    n, per_byte, s = chunks.shape[1], 8 // bits, np.float32(2 ** (bits - 1) - 1)
    for piece in range(first, last):
        row, start, stop = place(piece, n)
        element = (row % per_worker) * n + start  # of all that the worker draws for
        counter, skipped = element // _WORDS, element % _WORDS
        num_words = -(-(skipped + stop - start) // _WORDS) * _WORDS
        draw_words(words[:num_words], counter, streams[row // per_worker], key0, key1)
        i = start
        while i < stop:
            group = i // group_size
            end = min(stop, (group + 1) * group_size)
            _quantise(
                chunks[row, i:end],
                words[skipped + i - start :],
                norms[row, group],
                s,
                codes[i - start : end - start],
            )
            i = end
        num_bytes = -(-(stop - start) // per_byte)
        codes[stop - start : num_bytes * per_byte] = 0
        at = _NORM_BYTES * norms.shape[1] + start // per_byte
        pack(codes[: num_bytes * per_byte], payload[row, at : at + num_bytes], bits)


@jit("void(uint8[::1], float32, float32, float32[::1], boolean)")
def _dequantise(codes, norm, s, chunk, is_added):
    if is_added:
        for i in range(chunk.size):
            chunk[i] += norm * ((np.float32(codes[i]) - s) / s)
    else:
        for i in range(chunk.size):
            chunk[i] = norm * ((np.float32(codes[i]) - s) / s)


@jit("void(float32[:, :, ::1], uint8[:, :, ::1], float32[:, ::1], int64, int64, int64, int64)")
def _decode_mean(norms, payloads, chunks, bits, group_size, first, last):
    codes, per_byte, s = np.empty(PIECE, np.uint8), 8 // bits, np.float32(2 ** (bits - 1) - 1)
    num_codes, header_bytes = payloads.shape[1], _NORM_BYTES * norms.shape[2]
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        for j in range(num_codes):
            at, num_bytes = header_bytes + start // per_byte, -(-(stop - start) // per_byte)
            packed = payloads[row, j, at : at + num_bytes]
            unpack(packed, codes[: num_bytes * per_byte], bits)
            i = start
            while i < stop:
                group = i // group_size
                end = min(stop, (group + 1) * group_size)
                part = codes[i - start : end - start]
                _dequantise(part, norms[row, j, group], s, chunks[row, i:end], j > 0)
                i = end
        if num_codes > 1:
            chunk = chunks[row, start:stop]
            for i in range(chunk.size):
                chunk[i] /= np.float32(num_codes)
