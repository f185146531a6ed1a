"""Other targets than the recorded one: a grid of them, and what ties at each.

The page itself finds times, medians and places, from the curves. Whether two algorithms tie is a
matter of statistics, whose rules are in `experiments.report.statistics` alone: so ties are computed
here, for each target that the page offers.

A run that did not reach a target has missed it. But where the target is harder than its own, and it
ended before others of its situation did, nobody knows whether it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.page.curves import Curves
from experiments.report.page.packing import Array
from experiments.report.places import compared
from experiments.tasks.target import LOWER_IS_BETTER

MIN_TARGETS, MAX_TARGETS = 12, 40
_MAX_COMPARED = 20_000
"""Settings times targets: with more settings there are fewer targets."""

_EASIEST = 0.1
"""The share of all scores that are worse than the easiest target."""

TIED, APART, UNKNOWN = "t", "-", "u"


@dataclass(frozen=True)
class Verdicts:
    """Of one situation, for each target: a letter a setting, `TIED` with the first, `APART` or
    `UNKNOWN`, and which setting is the best baseline, -1 for none.
    """

    ties: list[str]
    baselines: list[int]


def grid(
    scores: Array, recorded: Sequence[float], metric: str, num_settings: int = 1
) -> list[float]:
    """Some `MAX_TARGETS` round numbers from easy to hard, of many settings fewer, one harder than
    any of `scores`, and those that runs were `recorded` for.
    """
    number = min(max(_MAX_COMPARED // num_settings, MIN_TARGETS), MAX_TARGETS)
    sign = -1.0 if LOWER_IS_BETTER.get(metric) else 1.0
    known = scores[np.isfinite(scores)]
    if not len(known):
        return sorted(set(recorded), key=lambda value: sign * value)
    easiest = float(np.quantile(sign * known, _EASIEST))
    best = float((sign * known).max())
    step, digits = _step((best - easiest) / number)
    count = range(math.ceil(easiest / step), math.floor(best / step) + 2)
    values = {round(sign * k * step, digits) for k in count} | set(recorded)
    return sorted(values, key=lambda value: sign * value)


def _step(least: float) -> tuple[float, int]:
    """The next of 1, 2, 5, 10 and so on times a power of ten, and its decimals."""
    exponent = math.floor(math.log10(max(least, 1e-9)))
    factor = next(f for f in (1, 2, 5, 10) if f * 10.0**exponent >= least * (1 - 1e-9))
    return factor * 10.0**exponent, max(-exponent, 0)


def verdicts(
    rows: Sequence[Mapping[Any, Any]], runs: Sequence[pd.DataFrame], curves: Curves, grid: Array
) -> Verdicts:
    """What `rows`, the settings of one situation, are to one another at each target of `grid`.

    Args:
        rows: of `results_table`.
        runs: of each, its runs, by their rows in `ReportData.runs`.
        curves: of all runs.
        grid: the targets.
    """
    timed = [k for k, row in enumerate(rows) if not row["shared_gpu"]]
    last_step = max(
        (int(runs[k].steps.max()) for k in timed if runs[k].steps.notna().any()), default=0
    )
    found = {k: _times(rows[k], runs[k], curves, grid, last_step) for k in timed}
    ties, baselines = [], []
    for at in range(len(grid)):
        own = {k: times[:, at] for k, times in found.items()}
        letters, baseline = _verdict(rows, own)
        ties.append(letters)
        baselines.append(baseline)
    return Verdicts(ties, baselines)


def _times(
    row: Mapping[Any, Any], runs: pd.DataFrame, curves: Curves, grid: Array, last_step: int
) -> Array:
    """Seconds `[run, target]`: inf for a miss, NaN where it is not known."""
    sign = -1.0 if LOWER_IS_BETTER.get(row["metric"]) else 1.0
    own = row["target_score"]
    is_harder = (
        sign * grid > sign * own if own is not None and pd.notna(own) else np.ones(len(grid), bool)
    )
    times = np.full((len(runs), len(grid)), math.inf)
    for at, (run, status, steps) in enumerate(
        zip(runs.index, runs.status, runs.steps, strict=True)
    ):
        if status != "completed":
            continue
        best = np.maximum.accumulate(sign * curves.get("score", run))
        first = np.searchsorted(best, sign * grid)
        seconds = np.append(curves.get("time_s", run), math.inf)
        times[at] = seconds[first]
        if pd.notna(steps) and steps < last_step:
            times[at, np.isinf(times[at]) & is_harder] = math.nan
    return times


def _verdict(rows: Sequence[Mapping[Any, Any]], times: Mapping[int, Array]) -> tuple[str, int]:
    letters = [UNKNOWN if np.isnan(times[k]).any() else APART for k in times]
    by_row = dict(zip(times, letters, strict=True))
    if UNKNOWN not in letters:
        at_target = [
            {**rows[k], "times_s": tuple(own), "time_to_accuracy_s": float(np.median(own))}
            for k, own in times.items()
        ]
        places = list(compared(at_target))
        for k, place in zip(times, places, strict=True):
            by_row[k] = TIED if place["ties_with_first"] else APART
        best = next(
            (k for k, place in zip(times, places, strict=True) if place["is_best_baseline"]), -1
        )
    else:
        best = -1
    return "".join(by_row.get(k, UNKNOWN) for k in range(len(rows))), best
