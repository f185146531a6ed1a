"""Bit packing inside CPU kernels: see `bit_packing_reference`."""

import numpy as np

from kernels.jit import jit

# Eight codes of one bit, a byte each, in a word (little endian). The product of `pack` gathers
# them in its top byte, no two bits in one place; that of `unpack` repeats a byte eight times.
_GATHER, _TOP_BYTE = np.uint64(0x0102040810204080), np.uint64(56)
_REPEAT, _OWN_BIT = np.uint64(0x0101010101010101), np.uint64(0x8040201008040201)
_CARRY, _SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(7)


@jit("void(uint8[::1], uint8[::1], int64)")
def pack(codes, packed, bits):
    """Pack codes of 1, 2, 4 or 8 bits; there are 8 / bits for every byte of `packed`."""
    if bits == 1:
        words = codes.view(np.uint64)
        for i in range(packed.size):
            packed[i] = np.uint8((words[i] * _GATHER) >> _TOP_BYTE)
    elif bits == 2:
        for i in range(packed.size):
            low = codes[4 * i] | codes[4 * i + 1] << 2
            packed[i] = np.uint8(low | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6)
    elif bits == 4:
        for i in range(packed.size):
            packed[i] = np.uint8(codes[2 * i] | codes[2 * i + 1] << 4)
    else:
        for i in range(packed.size):
            packed[i] = codes[i]


@jit("void(uint8[::1], uint8[::1], int64)")
def unpack(packed, codes, bits):
    """Undo `pack`."""
    if bits == 1:
        words = codes.view(np.uint64)
        for i in range(packed.size):
            own_bits = (np.uint64(packed[i]) * _REPEAT) & _OWN_BIT
            words[i] = ((own_bits + _CARRY) >> _SEVEN) & _REPEAT
    elif bits == 2:
        for i in range(packed.size):
            byte = packed[i]
            codes[4 * i], codes[4 * i + 1] = byte & 3, byte >> 2 & 3
            codes[4 * i + 2], codes[4 * i + 3] = byte >> 4 & 3, byte >> 6
    elif bits == 4:
        for i in range(packed.size):
            codes[2 * i], codes[2 * i + 1] = packed[i] & 15, packed[i] >> 4
    else:
        for i in range(packed.size):
            codes[i] = packed[i]
