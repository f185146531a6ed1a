"""What the page needs to compute intervals as `experiments.report.statistics` does: its constants.

The arithmetic is in script/statistics.js; a test holds both to equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from experiments.report.statistics import (
    BY_ORDER_SEEDS,
    MIN_SEEDS,
    order_place,
    students,
)

LEAST_FREEDOM = MIN_SEEDS - 1
"""Of Welch's interval too: it has as much as the smaller sample, or more."""

_NUM_COEFFICIENTS = 21


def rules(sizes: Iterable[int]) -> dict[str, Any]:
    """The constants for samples of any of these `sizes`.

    "students" are coefficients of Chebyshev polynomials in 2 `LEAST_FREEDOM` / freedom - 1: with
    any number of degrees of freedom they give `students` to 13 digits.
    """
    return {
        "min_seeds": MIN_SEEDS,
        "by_order_seeds": BY_ORDER_SEEDS,
        "places": {size: order_place(size) for size in sorted(set(sizes)) if _is_ordered(size)},
        "least_freedom": LEAST_FREEDOM,
        "students": _series(),
    }


def _is_ordered(size: int) -> bool:
    return size >= BY_ORDER_SEEDS


def _series() -> list[float]:
    """Through the values at as many places as there are coefficients."""
    places = chebyshev.chebpts1(_NUM_COEFFICIENTS)
    values = [students(2 * LEAST_FREEDOM / (place + 1)) for place in places.tolist()]
    return chebyshev.chebfit(places, np.array(values), _NUM_COEFFICIENTS - 1).tolist()
