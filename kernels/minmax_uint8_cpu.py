"""MinMaxUInt8 for CPU tensors, by Numba, on one thread and without the GIL.

Importing this module compiles the kernels, or loads them from Numba's cache. Import it before
forking (`kernels.minmax_uint8.load`), so that the children inherit them.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels.minmax_uint8_reference import HEADER_BYTES, read_header

# Constants of the compiled code live in this file: Numba's cache sees no change in any other.
_CODES = 8  # where the codes start in a payload
_TOP = np.float32(255)
_EPSILON = np.float32(1e-7)
_ZERO = np.float32(0)
_INT32_MAX = np.int32(0x7FFFFFFF)
_INT32_MIN = np.int32(-0x80000000)


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode float32 [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes(n)].

    `payload` is contiguous.
    """
    header = torch.empty(chunks.shape[0], 2)
    _compress(chunks.contiguous().numpy(), header.numpy(), payload.numpy())
    payload[:, :HEADER_BYTES] = header.view(torch.uint8)


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n] and contiguous."""
    header = torch.cat(read_header(payload), dim=1)
    _decompress(header.numpy(), payload.contiguous().numpy(), chunks.numpy())


def _jit(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # error_model: Python's raises ZeroDivisionError where IEEE arithmetic gives infinity.
    options = {"nogil": True, "error_model": "numpy"}

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # neither this folder nor the user's cache is writable
            return numba.njit(signature, **options)(function)

    return compile_


@_jit("int32(int32)")
def _swap_order(bits):
    """Map the bits of a float32 to an integer that sorts like the float, and back.

    LLVM vectorises the minimum of integers, but not that of floats that may be NaN. In this order
    every NaN lies beyond the infinities, so it becomes the minimum or the maximum and shows there.
    """
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & _INT32_MAX))


@_jit("void(float32[::1], float32[::1])")
def _find_range(chunk, header):
    smallest, largest = _INT32_MAX, _INT32_MIN
    chunk_bits = chunk.view(np.int32)
    # Indexed: `for bits in chunk_bits` does not vectorise (7 times slower).
    for i in range(chunk_bits.size):
        key = _swap_order(chunk_bits[i])
        smallest, largest = min(smallest, key), max(largest, key)
    header_bits = header.view(np.int32)
    header_bits[0], header_bits[1] = _swap_order(smallest), _swap_order(largest)
    header += _ZERO  # turns -0 into +0


@_jit("UniTuple(float32, 3)(float32, float32)")
def _grid(mn, mx):
    scale = _TOP / (mx - mn + _EPSILON)
    upper = np.rint(mx * scale)
    return scale, upper, upper - _TOP


@_jit("void(float32[:, ::1], float32[:, ::1], uint8[:, ::1])")
def _compress(chunks, headers, payload):
    num_chunks, n = chunks.shape
    for row in range(num_chunks):
        chunk, header, codes = chunks[row], headers[row], payload[row, _CODES:]
        _find_range(chunk, header)
        scale, upper, lower = _grid(header[0], header[1])
        if np.isfinite(lower / scale) and np.isfinite((_TOP + lower) / scale):
            for i in range(n):
                level = min(np.rint(chunk[i] * scale), upper) - lower
                # By way of int32, for which there is a vector instruction.
                codes[i] = np.uint8(np.int32(min(max(level, _ZERO), _TOP)))
            codes[n:] = 0
        else:
            header[:] = np.nan
            codes[:] = 0


@_jit("void(float32[:, ::1], uint8[:, ::1], float32[:, ::1])")
def _decompress(headers, payload, chunks):
    num_chunks, n = chunks.shape
    for row in range(num_chunks):
        chunk, codes = chunks[row], payload[row, _CODES:]
        scale, _, lower = _grid(headers[row, 0], headers[row, 1])
        for i in range(n):
            chunk[i] = (np.float32(codes[i]) + lower) / scale
