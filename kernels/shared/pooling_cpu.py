"""Which of 2 x 2 numbers is the largest, for CPU kernels: as torch's max pooling says it."""

import numpy as np
import torch

from kernels.jit import jit

_LOWER = np.int32(2)


@jit("Tuple((float32, int32))(float32, float32, float32, float32)", of=(torch.float32,))
def largest(a, b, c, d):
    """The largest of an upper row a, b and a lower row c, d, and its place, 0 to 3: of equal
    numbers the first, of several NaN the last.
    """
    b_wins = (b > a) | (b != b)
    d_wins = (d > c) | (d != d)
    upper, lower = b if b_wins else a, d if d_wins else c
    lower_wins = (lower > upper) | (lower != lower)
    place = _LOWER + np.int32(d_wins) if lower_wins else np.int32(b_wins)
    return lower if lower_wins else upper, place
