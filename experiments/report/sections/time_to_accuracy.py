"""Who reaches the target first: a table, and dots with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pandas as pd

from experiments.report.cells import leading, outcomes, said_of
from experiments.report.data import ReportData
from experiments.report.figures.dots import dots
from experiments.report.phrases import (
    caution,
    kinds,
    sentence,
    situation,
    so_far,
    span,
)
from experiments.report.results_table import COMPARABLE, comparable
from experiments.report.scores import ways_to_target
from experiments.report.section import PageTable, Section
from experiments.report.targets.times import settings_of_runs
from host.words import counted, listed, significant

TITLE = "Time to accuracy"
OWN = (
    " The score is that of the mean of the workers' models; their own models' is what each scored "
    "at that moment on its part of the validation set."
)

MAX_NAMES = 24
"""Algorithms of a panel, beside the baseline."""

LITTLE = 0.05
_TIME = "time_to_accuracy_s"
HEADERS = (
    *("reached the target", "time to accuracy (s)", "speed-up over the best baseline", "place"),
    *("workers' own models then", "status"),
)
NUMBERS = [
    *(*COMPARABLE, "optim", "name", "label", "shared_gpu", "runs", "missed"),
    *("reached", "reached_low", "reached_high", "time_to_accuracy_s", "low", "high"),
    *("baseline", "speedup", "speedup_low", "speedup_high", "place", "ties_with_first"),
    *("own_score_at_target", "status"),
]


def section(data: ReportData) -> Section:
    """Who reaches the target first where, and how much sooner than the best baseline."""
    table, drawn = data.table, data.drawn(most=MAX_NAMES)
    page = PageTable(
        caption=said_of(
            table,
            "Seconds of training until the target accuracy on the validation set: the median over "
            "seeds, its 95 % interval in brackets. A miss is infinite. A speed-up is the median of "
            "the ratios seed by seed, in its own interval. Two algorithms tie where the interval "
            "of the ratio of their times holds 1, or where Holm's correction over all pairs of the "
            "table does not tell them apart."
            + (OWN if table.own_score_at_target.notna().any() else ""),
        ),
        cells=leading(table) | outcomes(table, HEADERS),
        numbers=table.loc[:, NUMBERS],
        emphasized=[i for i, place in enumerate(table.place) if place == 1],
    )
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(table)),
        notes=[note for note in (_between(data), drawn.left_out) if note],
        tables={"time_to_accuracy": page},
        drawings={"time_to_accuracy": partial(dots, drawn)},
    )


def _between(data: ReportData) -> str:
    """By how much times may be off, since runs are evaluated now and then: how much they change if
    every other evaluation is left out, or, where that cannot be said, from one evaluation to the
    next; "" where that is little of every setting.
    """
    runs = data.runs.assign(setting=settings_of_runs(data)).query("not shared_gpu")
    reached = runs.loc[runs[_TIME] < math.inf].set_index("folder")
    columns = ["metric", "target_score", _TIME]
    rows = data.evaluations[["folder", "time_s", "score"]].merge(reached[columns], on="folder")
    is_odd = rows.groupby("folder").cumcount() % 2
    halves = [ways_to_target(rows.loc[is_odd == k], ["time_s"]).time_s for k in (0, 1)]
    changes = [abs(half.reindex(reached.index) / reached[_TIME] - 1) for half in halves]
    change = pd.concat(changes, axis=1).max(axis=1, skipna=False)
    last = rows.loc[rows.time_s < rows[_TIME]].groupby("folder").time_s.max()
    first = rows.loc[rows.time_s >= rows[_TIME]].groupby("folder").time_s.min()
    off = change.fillna(first / last - 1).fillna(1.0)
    medians = off.groupby(reached.setting).median()
    if not (medians > LITTLE).any():
        return ""
    furthest = data.table.loc[[medians.idxmax()]]
    where = situation(furthest, data.table)
    name = f"{furthest.label.iloc[0]} ({where})" if where else furthest.label.iloc[0]
    return (
        "Times are where a straight line between two evaluations is at the target. Without every "
        f"other evaluation they would be others: by up to {100 * medians.max():.0f} % in the "
        f"median run of a setting, {name}, and by up to {100 * off.max():.0f} % in a single run."
    )


def _finding(mark: str, table: pd.DataFrame) -> str:
    table = table.query("not shared_gpu")
    groups = list(comparable(table.query("target.notna()")))
    if table.empty:
        return sentence(["all workers shared a GPU, so that no time is compared"], mark)
    if not groups:
        return sentence(["the runs have no target, so that no time is compared"], mark)
    if len(groups) == 1:
        return sentence([_of_one(groups[0])], mark, names=table.label)
    return sentence(_of_many(groups, table), mark)


def _of_one(group: pd.DataFrame) -> str:
    first = group.iloc[0]
    target = f"the target of {first.target.removeprefix('accuracy ')}"
    if not first.time_to_accuracy_s < math.inf:
        return f"no algorithm reaches {target} in its median run{so_far(group.time_to_accuracy_s)}"
    order = " first" if len(group) > 1 else ""
    took = f"{significant(first.time_to_accuracy_s)} s{span(first.low, first.high)}"
    tied = listed(group.label[group.ties_with_first])
    missed = f", missed by {first.missed} of {first.runs} runs" if first.missed else ""
    return (
        f"{first.label} reaches {target}{order}, in {took}{missed}{_gain(first)}"
        + (f", and ties with {tied}" if tied else "")
        + caution(group)
    )


def _gain(first: pd.Series) -> str:
    if first.is_best_baseline:
        return ", itself the best baseline"
    if math.isnan(first.speedup):
        return ""
    if math.isinf(first.speedup):
        return f", which the best baseline, {first.baseline}, misses"
    ratio = f"{significant(first.speedup)} times{span(first.speedup_low, first.speedup_high)}"
    return f", {ratio} as fast as {first.baseline}, the best baseline"


def _of_many(groups: Sequence[pd.DataFrame], table: pd.DataFrame) -> list[str]:
    won = [group for group in groups if group.place.iloc[0] == 1]
    others = [so_far(group.time_to_accuracy_s) for group in groups if group.place.iloc[0] != 1]
    if not won:
        of_all = counted(len(groups), "situation")
        return [f"no algorithm reaches its target in any of {of_all}{max(others)}"]
    firsts = Counter(group.label.iloc[0] for group in won)
    tied = sum(bool(group.ties_with_first.any()) for group in won)
    said = listed(f"{label} in {number}" for label, number in firsts.most_common())
    return [
        f"of {counted(len(groups), 'situation')}, first is {said}",
        f"in {tied} the first ties with another" if tied else "",
        *(f"in {n} none reaches the target{when}" for when, n in sorted(Counter(others).items())),
        _greatest_gain(won, table),
    ]


def _greatest_gain(won: Sequence[pd.DataFrame], table: pd.DataFrame) -> str:
    gains = [group for group in won if _is_gain(group)]
    if not gains:
        return ""
    group = max(gains, key=lambda group: group.speedup.iloc[0])
    first = group.iloc[0]
    return (
        f"the greatest gain is that of {first.label} ({situation(group, table)}): "
        f"{significant(first.speedup)} times{span(first.speedup_low, first.speedup_high)} as fast "
        f"as {first.baseline}, the best baseline there{caution(group)}"
    )


def _is_gain(group: pd.DataFrame) -> bool:
    """Whether the first is faster than the best baseline, and does not tie with it."""
    baseline = group.loc[group.is_best_baseline]
    return 1 < group.speedup.iloc[0] < math.inf and not baseline.ties_with_first.any()
