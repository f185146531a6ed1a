"""Intervals of medians over seeds, in which a miss is infinite.

`scipy.stats.bootstrap` interpolates between the medians it has drawn, and between a number and inf
there is nothing to interpolate: here each bound is a median that was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Interval = tuple[float, float]
Array = NDArray[np.float64]

MIN_SEEDS = 3
"""Fewer runs have no interval, and nothing can be said to tie."""

UNKNOWN: Interval = (math.nan, math.nan)

_RESAMPLES = 10_000


def bootstrap_interval(values: Sequence[float] | Array) -> Interval:
    """The 95 % percentile-bootstrap interval of the median; values and bounds may be inf."""
    return _bounds(_medians(values, stream=0))


def ratio_interval(values: Sequence[float] | Array, others: Sequence[float] | Array) -> Interval:
    """That of the median of `values` over the median of `others`, which are drawn apart.

    Two misses count as a ratio of 1.
    """
    tops, bottoms = _medians(values, stream=0), _medians(others, stream=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # inf / inf, and times of 0
        return _bounds(np.where(tops == bottoms, 1.0, tops / bottoms))


@lru_cache(maxsize=4096)
def proportion_interval(num_successes: int, num_trials: int) -> Interval:
    """Wilson's 95 % interval of a probability."""
    interval = stats.binomtest(num_successes, num_trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def _bounds(drawn: Array) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def _medians(values: Sequence[float] | Array, stream: int) -> Array:
    """The median of each resample."""
    ordered = np.sort(np.asarray(values, dtype=float))
    lower, upper = _middles(len(ordered), stream)
    return (ordered[lower] + ordered[upper]) / 2


@lru_cache(maxsize=64)
def _middles(size: int, stream: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which of `size` ordered values are in the middle of each resample: the same for any values,
    so thousands of settings are resampled by as many look-ups.
    """
    picks = np.random.default_rng([stream, size]).integers(size, size=(_RESAMPLES, size))
    picks.sort(axis=1)
    return picks[:, (size - 1) // 2], picks[:, size // 2]
