"""What the CPU kernels share: how they are compiled, cut into pieces, and read 16-bit numbers."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

PIECE = 8192
"""Elements of a chunk that a kernel works on at once: their float32 fit in the first cache."""

# Numba knows neither 16-bit float: arrays hold their bits, in integers that tell them apart.
_NUMBERS = {torch.float32: "float32", torch.bfloat16: "uint16", torch.float16: "int16"}
_BFLOAT16_SHIFT, _FLOAT16_SHIFT = np.int32(16), np.int32(13)
_FLOAT16_SCALE = np.float32(2.0**112)  # the difference of the exponents' biases, 127 - 15
_FLOAT16_MAGNITUDE, _FLOAT16_INFINITY = np.int16(0x7FFF), np.int32(0x1F << 23)
_INFINITY = np.int32(0x7F800000)

_FILES = ("jit.py", "max_pool.py", "pooled_convolution.py", "*/cpu.py", "shared/*_cpu.py")
_SOURCES = [path for name in _FILES for path in Path(__file__).parent.glob(name)]
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCES))).hexdigest()[:8]


def jit(
    signature: str, *, of: Iterable[torch.dtype] = _NUMBERS, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile at once, or load from Numba's cache; `{x}` in the signature stands for `numbers` of
    all types in `of`.
    """
    signatures = list(dict.fromkeys(signature.format(x=_NUMBERS[dtype]) for dtype in of))
    # error_model: Python's raises ZeroDivisionError where IEEE arithmetic gives infinity.
    options = {"nogil": True, "error_model": "numpy", **options}

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        # Numba's cache sees no change in a file that a kernel calls into: its entries have names
        # that change with all of them.
        function.__qualname__ += f"_{_DIGEST}"
        try:
            return numba.njit(signatures, cache=True, **options)(function)
        except (RuntimeError, OSError):  # neither this folder nor the user's cache is writable
            return numba.njit(signatures, **options)(function)

    return compile_


def numbers(x: Tensor) -> np.ndarray:
    """`x[rows, n]` as kernels see it: contiguous, and its bits where it takes `widen` to read it
    and `kernels.shared.narrow_cpu.narrow` to write it.
    """
    x = x.contiguous()
    if x.dtype == torch.float32:
        return x.numpy()
    return x.view(getattr(torch, _NUMBERS[x.dtype])).numpy()


def num_pieces(n: int) -> int:
    """Pieces of a chunk of `n` elements; the pieces of all chunks are numbered in one sequence."""
    return -(-n // PIECE)


@jit("UniTuple(int64, 3)(int64, int64)")
def place(piece, n):
    """(row, start, stop) of a piece of chunks of `n` elements."""
    per_row = -(-n // PIECE)
    row = piece // per_row
    start = (piece - row * per_row) * PIECE
    return row, start, min(start + PIECE, n)


@jit("int32(float32)")
def to_bits(x):
    """The bits of a float32."""
    return np.float32(x).view(np.int32)


@jit("float32(int32)")
def from_bits(bits):
    """The float32 that has these bits."""
    return np.int32(bits).view(np.float32)


def widen(x):
    """In kernels: the float32 of one of `numbers`."""
    raise NotImplementedError("widen() is for compiled code only")


@overload(widen)
def _overload_widen(x):
    return {types.float32: _same, types.uint16: _from_bfloat16, types.int16: _from_float16}.get(x)


def _same(x):
    return x


def _from_bfloat16(x):
    return from_bits(np.int32(np.int32(x) << _BFLOAT16_SHIFT))


def _from_float16(x):
    """Moves exponent and mantissa into place; the product mends the bias, also of denormals."""
    bits = np.int32(np.int32(x & _FLOAT16_MAGNITUDE) << _FLOAT16_SHIFT)
    magnitude = from_bits(bits) * _FLOAT16_SCALE
    if bits >= _FLOAT16_INFINITY:
        magnitude = from_bits(np.int32(bits | _INFINITY))
    return -magnitude if x < 0 else magnitude
