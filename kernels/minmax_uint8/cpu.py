"""MinMaxUInt8 for CPU tensors, by Numba, without the GIL, on as many threads as torch uses.

Importing this module compiles the kernels, or loads them from Numba's cache. Call
`kernels.minmax_uint8.load` before forking, so that the children inherit the kernels. The functions
have the names and arguments of `kernels.minmax_uint8.reference`; outputs are contiguous.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.jit import from_bits, jit, num_pieces, numbers, place, to_bits, widen
from kernels.shared.narrow_cpu import narrow
from kernels.threads import share_pieces

_CODES = 8  # where the codes start in a payload
_TOP = np.float32(255)
_EPSILON = np.float32(1e-7)
_ZERO = np.float32(0)
_INT32_MAX = np.int32(0x7FFFFFFF)
_INT32_MIN = np.int32(-0x80000000)


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes(n)]."""
    x, codes = numbers(chunks), payload.numpy()
    ranges, headers = _room(x)
    if num_pieces(x.shape[1]) == 1:
        share_pieces(_encode_whole, (x, ranges, headers, codes), x.shape)
        _frame(x, headers, codes)
    else:
        share_pieces(_find_ranges, (x, ranges), x.shape)
        _encode_all(x, ranges, headers, codes)


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 or 16-bit [chunks, n]."""
    if chunks.dtype == torch.float32:
        decompress_mean(payload.unsqueeze(1), chunks)
        return
    codes, x = payload.contiguous().numpy(), numbers(chunks)
    share_pieces(_decode_narrow, (_read_headers(codes), codes, x), x.shape)


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    codes, means = payloads.contiguous().numpy(), chunks.numpy()
    share_pieces(_decode_mean, (_read_headers(codes), codes, means), means.shape)


def average(payloads: Tensor, n: int, payload: Tensor) -> None:
    """Encode the mean of the N codes of each chunk, [chunks, N, B] -> [chunks, B]; two passes."""
    codes, means = payloads.contiguous().numpy(), np.empty((len(payloads), n), np.float32)
    ranges, headers = _room(means)
    arguments = (_read_headers(codes), codes, means, ranges)
    share_pieces(_decode_mean_and_range, arguments, means.shape)
    _encode_all(means, ranges, headers, payload.numpy())


def _room(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For the least and the greatest of every piece, and for the header of every row."""
    ranges = np.empty((len(x), num_pieces(x.shape[1]), 2), np.int32)
    return ranges, np.empty((len(x), 2), np.float32)


def _read_headers(payloads: np.ndarray) -> np.ndarray:
    """float32 `[..., 2]`, copied, for a payload may start at any address."""
    return np.ascontiguousarray(payloads[..., :_CODES]).view(np.float32)


def _encode_all(
    x: np.ndarray, ranges: np.ndarray, headers: np.ndarray, payload: np.ndarray
) -> None:
    _make_headers(ranges, headers)
    share_pieces(_encode, (x, headers, payload), x.shape)
    _frame(x, headers, payload)


def _frame(x: np.ndarray, headers: np.ndarray, payload: np.ndarray) -> None:
    """What stands around the codes."""
    payload[:, :_CODES] = headers.view(np.uint8)
    payload[:, _CODES + x.shape[1] :] = 0


@jit("int32(int32)")
def _swap_order(bits):
    """Map the bits of a float32 to an integer that sorts like the float, and back.

    LLVM vectorises the minimum of integers, but not the minimum of floats that may be NaN. In this
    order every NaN lies beyond the infinities, so it becomes the minimum or the maximum and shows
    there.
    """
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & _INT32_MAX))


@jit("void({x}[:, ::1], int32[:, :, ::1], int64, int64)")
def _find_ranges(chunks, ranges, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk = chunks[row, start:stop]
        smallest, largest = _INT32_MAX, _INT32_MIN
        # Indexed: `for x in chunk` does not vectorise (7 times slower).
        for i in range(chunk.size):
            key = _swap_order(to_bits(widen(chunk[i])))
            smallest, largest = min(smallest, key), max(largest, key)
        bounds = ranges[row, piece - row * ranges.shape[1]]
        bounds[0], bounds[1] = smallest, largest


@jit("UniTuple(float32, 3)(float32, float32)")
def _grid(mn, mx):
    scale = _TOP / (mx - mn + _EPSILON)
    upper = np.rint(mx * scale)
    return scale, upper, upper - _TOP


@jit("void(int32[:, :, ::1], float32[:, ::1])")
def _make_headers(ranges, headers):
    for row in range(len(headers)):
        smallest, largest = ranges[row, 0, 0], ranges[row, 0, 1]
        for piece in range(1, ranges.shape[1]):
            smallest = min(smallest, ranges[row, piece, 0])
            largest = max(largest, ranges[row, piece, 1])
        # The sums turn -0 into +0.
        mn = from_bits(_swap_order(smallest)) + _ZERO
        mx = from_bits(_swap_order(largest)) + _ZERO
        scale, _, lower = _grid(mn, mx)
        if np.isfinite(lower / scale) and np.isfinite((_TOP + lower) / scale):
            headers[row, 0], headers[row, 1] = mn, mx
        else:
            headers[row] = np.nan


@jit("void({x}[:, ::1], float32[:, ::1], uint8[:, ::1], int64, int64)")
def _encode(chunks, headers, payload, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk, codes = chunks[row, start:stop], payload[row, _CODES + start : _CODES + stop]
        if np.isnan(headers[row, 0]):
            codes[:] = 0
            continue
        scale, upper, lower = _grid(headers[row, 0], headers[row, 1])
        for i in range(chunk.size):
            level = min(np.rint(widen(chunk[i]) * scale), upper) - lower
            # By way of int32, for which there is a vector instruction.
            codes[i] = np.uint8(np.int32(min(max(level, _ZERO), _TOP)))


@jit("void({x}[:, ::1], int32[:, :, ::1], float32[:, ::1], uint8[:, ::1], int64, int64)")
def _encode_whole(chunks, ranges, headers, payload, first, last):
    """Chunks of one piece, which is still in the cache when its range is known."""
    for row in range(first, last):
        _find_ranges(chunks, ranges, row, row + 1)
        _make_headers(ranges[row : row + 1], headers[row : row + 1])
        _encode(chunks, headers, payload, row, row + 1)


@jit(
    "void(float32[:, ::1], uint8[:, ::1], {x}[:, ::1], int64, int64)",
    of=(torch.float16, torch.bfloat16),
)
def _decode_narrow(headers, payload, chunks, first, last):
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk, codes = chunks[row, start:stop], payload[row, _CODES + start : _CODES + stop]
        mn, mx = headers[row, 0], headers[row, 1]
        scale, _, lower = _grid(mn, mx)
        for i in range(chunk.size):
            x = (np.float32(codes[i]) + lower) / scale
            chunk[i] = narrow(min(max(x, mn), mx), chunk.dtype)


@jit("void(float32[:, :, ::1], uint8[:, :, ::1], float32[:, ::1], int64, int64)")
def _decode_mean(headers, payloads, chunks, first, last):
    num_codes = payloads.shape[1]
    for piece in range(first, last):
        row, start, stop = place(piece, chunks.shape[1])
        chunk = chunks[row, start:stop]
        for j in range(num_codes):
            codes = payloads[row, j, _CODES + start : _CODES + stop]
            scale, _, lower = _grid(headers[row, j, 0], headers[row, j, 1])
            if j == 0:
                for i in range(chunk.size):
                    chunk[i] = (np.float32(codes[i]) + lower) / scale
            else:
                for i in range(chunk.size):
                    chunk[i] += (np.float32(codes[i]) + lower) / scale
        if num_codes > 1:
            for i in range(chunk.size):
                chunk[i] /= np.float32(num_codes)


@jit("void(float32[:, :, ::1], uint8[:, :, ::1], float32[:, ::1], int32[:, :, ::1], int64, int64)")
def _decode_mean_and_range(headers, payloads, chunks, ranges, first, last):
    for piece in range(first, last):
        _decode_mean(headers, payloads, chunks, piece, piece + 1)
        _find_ranges(chunks, ranges, piece, piece + 1)
