"""The greatest magnitude of each group of elements, inside CPU kernels."""

import numpy as np

from kernels.jit import from_bits, jit, to_bits, widen

_MAGNITUDE = np.int32(0x7FFFFFFF)


@jit("void({x}[:, ::1], float32[:, ::1], int64, int64, int64)")
def find_magnitudes(chunks, magnitudes, group_size, first, last):
    """Write max |x| of groups `first` to `last` into `magnitudes[chunks, groups]`; NaN where a
    group has one. Groups of all chunks are numbered in one sequence.
    """
    per_row = magnitudes.shape[1]
    for group in range(first, last):
        row = group // per_row
        start = (group - row * per_row) * group_size
        members = chunks[row, start : min(start + group_size, chunks.shape[1])]
        greatest = np.int32(0)
        for i in range(members.size):
            # As integers: these maxima vectorise, and NaN is greater than infinity.
            bits = np.int32(to_bits(widen(members[i])) & _MAGNITUDE)
            greatest = max(greatest, bits)
        magnitudes[row, group - row * per_row] = from_bits(greatest)
