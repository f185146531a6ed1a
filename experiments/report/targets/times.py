"""How long settings take to any target, from the curves of their runs.

A run that did not reach a target has missed it. But where the target is harder than its own, and it
ended at its own, was ended early, or ended before others of its situation did, nobody knows whether
it would have. Nor does anybody of a run that has not ended, or, at another target than its own, of
one whose evaluations cannot be read, all or the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.report.data import ReportData
from experiments.report.results_table import AT_WORK, KEYS
from experiments.report.scores import on_line, parts_of_way
from experiments.report.statistics import Array
from experiments.report.targets.curves import Curves
from experiments.runs.summary import ENDED_EARLY, HAVE_TIMES
from experiments.tasks.target import LOWER_IS_BETTER

_OF_RUN = ("status", "steps", "stops_at_target", "is_unread", "time_to_accuracy_s")


@dataclass(frozen=True)
class Situation:
    """What is compared: `rows` of `results_table` with the "target_score" of their runs, and the
    `runs` of each that have `ended`, by their rows in `ReportData.runs`.
    """

    rows: Sequence[Mapping[Any, Any]]
    runs: Sequence[pd.DataFrame]


def settings_of_runs(data: ReportData) -> list[int]:
    """Which row of `ReportData.table` each run belongs to."""
    keys = list(KEYS)
    settings = data.table[keys].assign(setting=data.table.index)
    merged = data.runs[keys].merge(settings, on=keys, how="left")
    assert len(merged) == len(data.runs), "each run is of one setting"
    return [int(setting) for setting in merged.setting]


def runs_of_settings(data: ReportData, settings: Sequence[int]) -> dict[Any, pd.DataFrame]:
    """The runs of each row of `ReportData.table`; `settings` are of `settings_of_runs`."""
    return dict(iter(data.runs.groupby(pd.Series(settings, data.runs.index))))


def ended(runs: pd.DataFrame) -> pd.DataFrame:
    """Those that are no longer at work: of the others nobody knows what they will reach."""
    return runs.loc[runs.status != AT_WORK]


def any_unread(situation: Situation) -> bool:
    """Whether there is a run that may have reached its target, and whose evaluations cannot be
    read.
    """
    return any(runs.is_unread.any() for runs in situation.runs)


def times_of_all(situation: Situation, curves: Curves, targets: Array) -> dict[int, Array]:
    """Seconds `[run, target]` of each setting, by its position, whose times are claims: inf for a
    miss, NaN where it is not known.
    """
    rows, runs = situation.rows, situation.runs
    timed = [k for k, row in enumerate(rows) if not row["shared_gpu"] and len(runs[k])]
    last_step = max(
        (int(runs[k].steps.max()) for k in timed if runs[k].steps.notna().any()), default=0
    )
    return {k: _times(rows[k], runs[k], curves, targets, last_step) for k in timed}


def _times(
    row: Mapping[Any, Any], runs: pd.DataFrame, curves: Curves, targets: Array, last_step: int
) -> Array:
    sign = -1.0 if LOWER_IS_BETTER.get(row["metric"]) else 1.0
    own = math.nan if row["target_score"] is None else float(row["target_score"])
    is_harder = ~(sign * targets <= sign * own)  # than NaN, any
    times = np.full((len(runs), len(targets)), math.inf)
    own_runs = zip(runs.index, *(runs[name] for name in _OF_RUN), strict=True)
    for at, (index, status, steps, stops, is_unread, recorded_s) in enumerate(own_runs):
        if status not in HAVE_TIMES:
            continue
        scores = sign * curves.get("score", index)
        best = np.maximum.accumulate(np.where(np.isnan(scores), -math.inf, scores))
        first = np.searchsorted(best, sign * targets)
        times[at] = _on_lines(scores, curves.get("time_s", index), first, sign * targets)
        is_missed = np.isinf(times[at])
        stopped = status == ENDED_EARLY or (stops and bool((best >= sign * own).any()))
        if is_unread:
            told = math.inf if pd.isna(recorded_s) else recorded_s
            times[at, is_missed] = np.where(targets == own, told, math.nan)[is_missed]
        elif stopped or (pd.notna(steps) and steps < last_step):
            times[at, is_missed & is_harder] = math.nan
    return times


def _on_lines(scores: Array, seconds: Array, first: NDArray[np.int_], targets: Array) -> Array:
    """`experiments.report.scores.ways_to_target` in seconds, of one run and many targets, whose
    `first` evaluations these are; inf behind the last. Greater scores are better.
    """
    times = np.full(len(targets), math.inf)
    is_there = first < len(scores)
    after = first[is_there]
    before = np.maximum(after - 1, 0)
    parts = parts_of_way(scores[before], scores[after], targets[is_there])
    times[is_there] = on_line(seconds[before], seconds[after], parts)
    return times
