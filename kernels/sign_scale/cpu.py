"""SignScale for CPU tensors, by Numba, without the GIL, on as many threads as torch uses.

Importing this module compiles the kernels, or loads them from Numba's cache. The functions have the
names and arguments of `kernels.sign_scale.reference`; outputs are contiguous.
"""

import numpy as np
from torch import Tensor

from kernels.jit import PIECE, jit, num_pieces, numbers, place, widen
from kernels.shared.bit_packing_cpu import pack, unpack
from kernels.threads import share_pieces

_CODES = 4  # where the codes start in a payload


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes(n)]."""
    x, codes = numbers(chunks), payload.numpy()
    sums = _new_sums(x)
    share_pieces(_sum_magnitudes, (x, sums), x.shape)
    scales = _write_header(sums, codes, x.shape[1])
    share_pieces(_encode, (x, scales, codes), x.shape)


def compress_with_feedback(chunks: Tensor, residual: Tensor, payload: Tensor) -> None:
    """Encode residual + chunks; contiguous `residual`, float32 [chunks, n], keeps the loss."""
    x, left, codes = numbers(chunks), residual.numpy(), payload.numpy()
    sums = _new_sums(x)
    share_pieces(_add, (x, left, sums), x.shape)
    scales = _write_header(sums, codes, x.shape[1])
    share_pieces(_encode_and_subtract, (left, scales, codes), x.shape)


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks)


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    codes, means = payloads.contiguous().numpy(), chunks.numpy()
    # A copy, because the payload may start at an address that float32 does not allow.
    scales = np.ascontiguousarray(codes[..., :_CODES]).view(np.float32)[..., 0]
    share_pieces(_decode_mean, (scales, codes, means), means.shape)


def _new_sums(x: np.ndarray) -> np.ndarray:
    return np.empty((len(x), num_pieces(x.shape[1])))


def _write_header(sums: np.ndarray, payload: np.ndarray, n: int) -> np.ndarray:
    """The scales, float32 `[rows]`: NaN for a chunk that is not encoded."""
    scales = (sums.sum(1) / n).astype(np.float32)
    scales[~np.isfinite(scales)] = np.nan
    payload[:, :_CODES] = scales[:, None].view(np.uint8)
    payload[:, _CODES + -(-n // 8) :] = 0
    return scales


# Any order will do, since float64 hides it, and the order of a loop cannot be vectorised.
@jit("void({x}[:, ::1], float64[:, ::1], int64, int64)", fastmath={"reassoc"})
def _sum_magnitudes(chunks, sums, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk, total = chunks[row, start:stop], 0.0
        for i in range(chunk.size):
            total += np.float64(abs(widen(chunk[i])))
        sums[row, piece - row * sums.shape[1]] = total


@jit("void({x}[:, ::1], float32[::1], uint8[:, ::1], int64, int64)")
def _encode(chunks, scales, payload, first, last):
    codes = np.zeros(PIECE, np.uint8)
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk = chunks[row, start:stop]
        packed = payload[row, _CODES + start // 8 : _CODES + (stop + 7) // 8]
        if np.isnan(scales[row]):
            packed[:] = 0
            continue
        for i in range(chunk.size):
            codes[i] = widen(chunk[i]) >= 0
        codes[chunk.size : 8 * packed.size] = 0
        pack(codes[: 8 * packed.size], packed, 1)


@jit("void({x}[:, ::1], float32[:, ::1], float64[:, ::1], int64, int64)")
def _add(chunks, residual, sums, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk, left = chunks[row, start:stop], residual[row, start:stop]
        for i in range(chunk.size):
            left[i] += widen(chunk[i])
        _sum_magnitudes(residual, sums, piece, piece + 1)


@jit("void(float32[:, ::1], float32[::1], uint8[:, ::1], int64, int64)")
def _encode_and_subtract(residual, scales, payload, first, last):
    for piece in range(first, last):
        _encode(residual, scales, payload, piece, piece + 1)
        row, start, stop = place(piece, residual.shape[1])
        left, scale = residual[row, start:stop], scales[row]
        if np.isnan(scale):
            left[:] = 0
            continue
        for i in range(left.size):
            left[i] -= scale if left[i] >= 0 else -scale


@jit("void(float32[:, ::1], uint8[:, :, ::1], float32[:, ::1], int64, int64)")
def _decode_mean(scales, payloads, chunks, first, last):
    codes, num_codes = np.empty(PIECE, np.uint8), payloads.shape[1]
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk = chunks[row, start:stop]
        for j in range(num_codes):
            packed = payloads[row, j, _CODES + start // 8 : _CODES + (stop + 7) // 8]
            unpack(packed, codes[: 8 * packed.size], 1)
            scale = scales[row, j]
            if j == 0:
                for i in range(chunk.size):
                    chunk[i] = scale if codes[i] else -scale
            else:
                for i in range(chunk.size):
                    chunk[i] += scale if codes[i] else -scale
        if num_codes > 1:
            for i in range(chunk.size):
                chunk[i] /= np.float32(num_codes)
