"""Float32 rounded to the nearest of a narrower type, half to even, inside CPU kernels."""

import numpy as np
from numba import types
from numba.extending import overload

from kernels.jit import from_bits, jit, to_bits

_MAGNITUDE, _SIGN = np.int32(0x7FFFFFFF), np.int32(0x8000)
_ONE, _BIAS, _MANTISSA_BITS, _HALF = np.int32(1), np.int32(127), np.int32(23), np.int32(16)


@jit("int32(float32, int64, int64)")
def round_magnitude(x, mantissa_bits, bias):
    """The bits of |x| as a float with so many bits behind the point and this bias of its exponent.

    By integer arithmetic; below the type's normal numbers by a float32 addition, to a number whose
    last bit is the type's smallest. Beyond its greatest, and for NaN, the bits say nothing.
    """
    dropped = np.int32(_MANTISSA_BITS - np.int32(mantissa_bits))
    rebias = np.int32(np.int32(_BIAS - np.int32(bias)) << _MANTISSA_BITS)
    smallest_normal = np.int32(rebias + np.int32(_ONE << _MANTISSA_BITS))
    magic = np.int32(smallest_normal + np.int32(dropped << _MANTISSA_BITS))
    below_half = np.int32(np.int32(_ONE << np.int32(dropped - _ONE)) - _ONE)
    magnitude = np.int32(to_bits(x) & _MAGNITUDE)
    odd = np.int32(np.int32(magnitude >> dropped) & _ONE)
    normal = np.int32(np.int32(magnitude - rebias + below_half + odd) >> dropped)
    subnormal = np.int32(to_bits(from_bits(magnitude) + from_bits(magic)) - magic)
    return subnormal if magnitude < smallest_normal else normal


def narrow(x, dtype):
    """In kernels: the float32 `x` as an element of `kernels.jit.numbers` of a 16-bit `dtype`."""
    raise NotImplementedError("narrow() is for compiled code only")


@overload(narrow)
def _overload_narrow(x, dtype):
    return {types.uint16: _to_bfloat16, types.int16: _to_float16}.get(dtype.dtype)


def _to_bfloat16(x, dtype):
    return np.uint16(_to_16_bits(x, 7, 127))


def _to_float16(x, dtype):
    return np.int16(_to_16_bits(x, 10, 15))


@jit("int32(float32, int64, int64)")
def _to_16_bits(x, mantissa_bits, bias):
    infinity = np.int32((2 * bias + 1) << mantissa_bits)
    bits = min(round_magnitude(x, mantissa_bits, bias), infinity)
    if np.isnan(x):
        bits = np.int32(infinity + 1)
    return np.int32(bits | np.int32(np.int32(to_bits(x) >> _HALF) & _SIGN))
