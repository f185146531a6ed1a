"""The rates and delays of a grid."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from host.errors import UserError

Array = NDArray[np.float64]

MOST = 1_000
"""Values of an axis: a grid of these has a million points."""


class Axes(NamedTuple):
    """The rates `[r]` and delays `[d]` of a grid."""

    rates_mbit: Array
    delays_ms: Array

    def coarse(self, num: int) -> "Axes":
        """At most `num` of each, both ends among them."""
        return Axes(*(axis[_spaced(len(axis), num)] for axis in self))


def parse_axis(option: str, text: str) -> Array:
    """LOW:HIGH:NUM as NUM values at equal ratios. Raises `UserError` for what is none."""
    try:
        low, high, num = text.split(":")
        if not (0 < float(low) < float(high) < math.inf and 2 <= int(num) <= MOST):
            raise ValueError
        return np.geomspace(float(low), float(high), int(num))
    except ValueError:
        raise UserError(
            f"{option} is LOW:HIGH:NUM with 0 < LOW < HIGH and 2 to {MOST:,} values, as "
            f"10:10000:7, got {text}"
        ) from None


def _spaced(length: int, num: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, length - 1, min(num, length)).round().astype(int))
