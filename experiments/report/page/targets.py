"""Other targets than the recorded one: a grid of them, and what ties at each.

The page itself finds times, medians and places, from the curves. Whether two algorithms tie is a
matter of statistics, whose rules are in `experiments.report.statistics` alone: so ties are computed
here, for each target that the page offers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.report.places import compared_on_page
from experiments.report.statistics import Array
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import Situation, times_of_all
from experiments.tasks.target import LOWER_IS_BETTER

MIN_TARGETS, MAX_TARGETS = 12, 40
_MAX_COMPARED = 20_000
"""Settings times targets: with more settings there are fewer targets."""

_EASIEST = 0.1
"""The share of all scores that are worse than the easiest target."""

FIRST, TIED, APART, UNKNOWN = "f", "t", "-", "u"


@dataclass(frozen=True)
class Verdicts:
    """Of one situation, for each target: which setting is the best baseline, -1 for none, and a
    letter a setting: the `FIRST`, `TIED` with it, `APART` or `UNKNOWN`.
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


def verdicts(situations: Sequence[Situation], curves: Curves, grid: Array) -> list[Verdicts]:
    """What the settings of each situation are to one another at each target of `grid`: at each, all
    situations are one page.

    Args:
        situations: that share their targets.
        curves: of all runs.
        grid: the targets.
    """
    times = [times_of_all(situation, curves, grid) for situation in situations]
    found = [Verdicts([], []) for _ in situations]
    for at in range(len(grid)):
        at_target = [{k: own[k][:, at] for k in own} for own in times]
        for verdict, (letters, baseline) in zip(
            found, _verdicts_at(situations, at_target, grid[at]), strict=True
        ):
            verdict.ties.append(letters)
            verdict.baselines.append(baseline)
    return found


def _verdicts_at(
    situations: Sequence[Situation], times: Sequence[Mapping[int, Array]], target: float
) -> list[tuple[str, int]]:
    """The letters and the best baseline of each situation, at one target; runs may have none."""
    known = [k for k, own in enumerate(times) if not any(np.isnan(t).any() for t in own.values())]
    pages = compared_on_page(
        [
            [
                {
                    **situations[k].rows[position],
                    "target": target,
                    "times_s": tuple(own),
                    "time_to_accuracy_s": float(np.median(own)),
                }
                for position, own in times[k].items()
            ]
            for k in known
        ]
    )
    found = dict(zip(known, pages, strict=True))
    return [
        _verdict(len(situation.rows), times[k], found.get(k))
        for k, situation in enumerate(situations)
    ]


def _verdict(
    num_rows: int, times: Mapping[int, Array], places: Sequence[Mapping[str, Any]] | None
) -> tuple[str, int]:
    """`places` are of the settings that `times` has, None where some times are not known."""
    letters, best = {}, -1
    for at, (k, own) in enumerate(times.items()):
        if places is None:
            letters[k] = UNKNOWN if np.isnan(own).any() else APART
            continue
        letters[k] = letter(places[at])
        if places[at]["is_best_baseline"]:
            best = k
    return "".join(letters.get(k, UNKNOWN) for k in range(num_rows)), best


def letter(row: Mapping[str, Any]) -> str:
    """Of a row with what `compared_on_page` says of it."""
    if row["ties_with_first"]:
        return TIED
    return FIRST if row["place"] == 1 else APART
