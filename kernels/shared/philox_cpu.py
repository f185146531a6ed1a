"""Philox4x32-10 inside CPU kernels: see `philox_reference`."""

import numpy as np

from kernels.jit import jit

_MULTIPLIER_0, _MULTIPLIER_2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_WORD, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@jit("void(uint32[::1], int64, int64[::1], int64, int64)")
def draw_words(words, first, stream, key0, key1):
    """Fill `words`, four for each counter (first, *stream), (first + 1, *stream), ..."""
    stream1, stream2, stream3 = np.uint64(stream[0]), np.uint64(stream[1]), np.uint64(stream[2])
    for i in range(words.size // 4):
        c0, c1, c2, c3 = np.uint64(first + i), stream1, stream2, stream3
        k0, k1 = np.uint64(key0), np.uint64(key1)
        for _ in range(10):
            a, b = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_2
            c0, c2 = (b >> _WORD) ^ c1 ^ k0, (a >> _WORD) ^ c3 ^ k1
            c1, c3 = b & _LOW, a & _LOW
            k0, k1 = (k0 + _KEY_STEP_0) & _LOW, (k1 + _KEY_STEP_1) & _LOW
        words[4 * i], words[4 * i + 1] = np.uint32(c0), np.uint32(c1)
        words[4 * i + 2], words[4 * i + 3] = np.uint32(c2), np.uint32(c3)
