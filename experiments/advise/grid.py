"""Times to accuracy over a grid of rates and delays: which algorithm is first where, and where that
changes.

Between the points of the grid, the logarithm of a time is linear in the logarithms of rate and
delay; there a miss counts as `MISS` times the best. Shapes: s seeds, r rates, d delays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.report.statistics import (
    is_tie,
    median_interval,
    prediction_error,
)

Array = NDArray[np.float64]

MISS = 3.0
"""So that a line lies about half-way between a point that an algorithm wins and one it misses."""

_NEVER_S = 1e9
"""Stands for inf where nothing else is known."""


class Crossing(NamedTuple):
    """From this rate on, at one delay, another algorithm is first; None: none is."""

    rate_mbit: float
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """`times_s[algo]` are `[s, r, d]`, inf for a miss; `rates_mbit [r]`, `delays_ms [d]` ascend.

    `simulated_at` are the names of the algorithms of which some points only were simulated, with
    their number: their other times are interpolated. `model_error` is that of all times; None: by
    the rate, as `prediction_error` has it.
    """

    rates_mbit: Array
    delays_ms: Array
    times_s: Mapping[str, Array]
    simulated_at: Mapping[str, int] = field(default_factory=dict)
    model_error: float | None = None

    @cached_property
    def medians_s(self) -> dict[str, Array]:
        """Over seeds, `[r, d]`."""
        return {algo: np.median(times, axis=0) for algo, times in self.times_s.items()}

    @cached_property
    def best_s(self) -> Array:
        """Of the algorithm that is first, `[r, d]`; inf where none reaches the target."""
        return np.min(list(self.medians_s.values()), axis=0)

    def first(self, rate: int, delay: int) -> str | None:
        """The algorithm that is first at a point, by its indices."""
        if np.isinf(self.best_s[rate, delay]):
            return None
        return min(self.medians_s, key=lambda algo: self.medians_s[algo][rate, delay])

    def ties(self, rate: int, delay: int) -> list[str]:
        """Those that tie with the first at a point."""
        point = rate, delay
        if point not in self._tied:
            self._tied[point] = self._find_ties(rate, delay)
        return self._tied[point]

    @cached_property
    def _tied(self) -> dict[tuple[int, int], list[str]]:
        """Those of the points that were asked for: pages and figures ask often."""
        return {}

    def _find_ties(self, rate: int, delay: int) -> list[str]:
        first = self.first(rate, delay)
        if first is None:
            return []
        own = self.times_s[first][:, rate, delay].tolist()
        error = self.model_error
        if error is None:
            error = prediction_error(self.rates_mbit[rate])
        return [
            algo
            for algo, times in self.times_s.items()
            if algo != first
            and np.isfinite(self.medians_s[algo][rate, delay])
            and is_tie(times[:, rate, delay].tolist(), own, paired=True, model_error=error)
        ]

    def winners(self) -> Counter[str]:
        """The algorithms that are first somewhere, with the number of points."""
        points = np.ndindex(self.best_s.shape)
        firsts = [self.first(*point) for point in points]
        return Counter(first for first in firsts if first is not None)

    def log_times(
        self, rates_mbit: Array, delays_ms: Array, algos: Collection[str] | None = None
    ) -> dict[str, Array]:
        """The logarithms of the medians of all, or of some, interpolated at other rates `[r']` and
        delays `[d']`.
        """
        by_rate = Between.of(self.rates_mbit, rates_mbit)
        by_delay = Between.of(self.delays_ms, delays_ms)
        misses_s = np.minimum(MISS * self.best_s, _NEVER_S)
        return {
            algo: interpolated(
                np.log(np.where(np.isinf(times), misses_s, times)), by_rate, by_delay
            )
            for algo, times in self.medians_s.items()
            if algos is None or algo in algos
        }

    def is_reached(self, rates_mbit: Array, delays_ms: Array) -> NDArray[np.bool_]:
        """Whether any algorithm reaches the target at rates `[r']` and delays `[d']`: as far as
        half-way from a point where one does to a point where none does.
        """
        by_rate = Between.of(self.rates_mbit, rates_mbit)
        by_delay = Between.of(self.delays_ms, delays_ms)
        return interpolated(np.isfinite(self.best_s).astype(float), by_rate, by_delay) >= 0.5

    def crossings(self, delay: int, *, points_per_cell: int = 200) -> list[Crossing]:
        """Where the first changes with the rate, at the delay of an index, from low rates up."""
        num = points_per_cell * (len(self.rates_mbit) - 1) + 1
        rates = np.geomspace(self.rates_mbit[0], self.rates_mbit[-1], num)
        own = rates, self.delays_ms[[delay]]
        names = [*self.medians_s, None]
        firsts = np.argmin([times[:, 0] for times in self.log_times(*own).values()], axis=0)
        firsts = np.where(self.is_reached(*own)[:, 0], firsts, len(names) - 1)
        return [
            Crossing(float(np.sqrt(rates[i] * rates[j])), names[firsts[i]], names[firsts[j]])
            for i, j in pairwise(range(num))
            if firsts[i] != firsts[j]
        ]

    def frame(self) -> pd.DataFrame:
        """One row for each algorithm and point."""
        rows = []
        for rate, delay in np.ndindex(self.best_s.shape):
            first, ties = self.first(rate, delay), self.ties(rate, delay)
            for algo, times in self.times_s.items():
                low_s, high_s = median_interval(times[:, rate, delay])
                rows.append(
                    {
                        "rate_mbit": self.rates_mbit[rate],
                        "delay_ms": self.delays_ms[delay],
                        "algo": algo,
                        "simulated_time_to_accuracy_s": self.medians_s[algo][rate, delay],
                        "low_s": low_s,
                        "high_s": high_s,
                        "is_first": algo == first,
                        "ties_with_first": algo in ties,
                        "is_interpolated": algo in self.simulated_at,
                    }
                )
        return pd.DataFrame(rows)


class Between(NamedTuple):
    """Where numbers stand between known ones, by their logarithms: after which of them, and how
    much of the way to the next, 0 to 1; numbers beyond stand at the ends.
    """

    places: NDArray[np.intp]
    shares: Array

    @classmethod
    def of(cls, known: Array, wanted: Array) -> Between:
        """`known` ascend."""
        at = np.interp(np.log(wanted), np.log(known), np.arange(len(known), dtype=float))
        places = np.clip(np.floor(at).astype(int), 0, max(len(known) - 2, 0))
        return cls(places, at - places)


def interpolated(values: Array, by_rate: Between, by_delay: Between) -> Array:
    """Values `[..., r, d]` at other points, linear along each axis.

    Not by matrices of weights: products so small cost a hundred times as much where BLAS waits for
    threads that other processes keep from running.
    """
    shares = by_rate.shares[:, None]
    return _along(-2, _along(-1, values, by_delay.places, by_delay.shares), by_rate.places, shares)


def _along(axis: int, values: Array, places: NDArray[np.intp], shares: Array) -> Array:
    if values.shape[axis] == 1:
        return np.repeat(values, len(places), axis=axis)
    low, high = (np.take(values, places + k, axis=axis) for k in (0, 1))
    low *= 1 - shares
    high *= shares
    low += high
    return low


def spread_out(
    times_s: Array, rates: Array, delays: Array, everywhere: tuple[Array, Array]
) -> Array:
    """Times `[..., r', d']` at some rates and delays as times at all, `everywhere`, `[..., r, d]`.

    Between a miss and a time lies a miss.
    """
    by_rate, by_delay = Between.of(rates, everywhere[0]), Between.of(delays, everywhere[1])
    is_missed = interpolated(np.isinf(times_s).astype(float), by_rate, by_delay) > 0
    times = np.exp(interpolated(np.log(np.minimum(times_s, _NEVER_S)), by_rate, by_delay))
    return np.where(is_missed, np.inf, times)
