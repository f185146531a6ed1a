"""Who would be first at other targets: below what the best baseline reaches in the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import leading, said_of
from experiments.report.data import MAX_PANELS, ReportData
from experiments.report.figures.target_curves import TargetCurves, target_plot, targets_between
from experiments.report.phrases import kinds, sentence, so_far
from experiments.report.places import compared_on_page
from experiments.report.results_table import AT_WORK, COMPARABLE
from experiments.report.section import PageTable, Section
from experiments.report.statistics import Array
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import (
    Situation,
    any_unread,
    ended,
    runs_of_settings,
    settings_of_runs,
    times_of_all,
)
from experiments.report.tuned import POINTS
from experiments.tasks.target import LOWER_IS_BETTER
from host.words import counted, listed, significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Time against target"

_OF_ONE = {"algorithm", "evaluated", "runs", "optim", "target", "Mbit/s measured"}
"""Columns that belong to one algorithm, or to another target."""
_NUMBERS = [*COMPARABLE, "baseline", "points", "other_target", "is_known", "first", "seconds"]


def section(data: ReportData) -> Section:
    """Who is first at targets near what the best baseline reaches, of runs that went on so far."""
    rows = pd.DataFrame(_rows(data))
    if rows.empty:
        return Section(
            finding="No situation has a target and a baseline that was evaluated: no other targets."
        )
    page = PageTable(
        caption=said_of(
            rows,
            f"Who is first at other targets, so many {_side(rows)} {_below(data)} (medians over "
            "seeds): seconds, and who ties. Not known where runs ended at an easier target: they "
            "might have been first."
            + (" Nor where evaluations cannot be read." if rows.is_unread.any() else ""),
        ),
        cells=_cells(rows),
        numbers=rows.loc[:, _NUMBERS],
    )
    return Section(
        finding=" ".join(_finding(mark, some, data) for mark, some in kinds(rows)),
        notes=[f"The figure has the first {MAX_PANELS} situations."]
        if len(rows) > MAX_PANELS * len(POINTS)
        else [],
        tables={"time_against_target": page, "first_over_targets": _over_targets(rows, data)},
        drawings={"time_against_target": partial(_figure, data)},
    )


def _over_targets(rows: pd.DataFrame, data: ReportData) -> PageTable:
    """A row a situation: who is first at each target, and who is first or ties at all of them."""
    situations = [group for _, group in rows.groupby(list(COMPARABLE), dropna=False, sort=False)]
    firsts = [int(group.index[0]) for group in situations]
    heads = {
        header: [cells[first] for first in firsts]
        for header, cells in leading(rows).items()
        if header not in _OF_ONE
    }
    shown = [[_who(row) for row in group.to_dict("records")] for group in situations]
    return PageTable(
        caption=said_of(
            rows,
            f"Who is first at targets so many {_side(rows)} {_below(data)}, and with how many "
            "others that tie; and who is first or ties at all of these targets.",
        ),
        cells=heads
        | {
            f"{at:g} {_side(rows).split()[1]}": [row[k] for row in shown]
            for k, at in enumerate(POINTS)
        }
        | {"at all of them": [listed(sorted(_steady(group))) or "-" for group in situations]},
        numbers=rows.loc[:, _NUMBERS],
    )


def _who(row: Mapping[Any, Any]) -> str:
    return _name(row) + (f" (ties: {len(row['ties'])})" if row["ties"] else "")


def _name(row: Mapping[Any, Any]) -> str:
    """Of the first, or why it is nobody."""
    if row["first"] or not row["is_known"]:
        return row["first"] or "not known"
    return AT_WORK if row["so_far"] else "all missed"


def _side(rows: pd.DataFrame) -> str:
    """How far targets are from the baseline's score, and to which side."""
    is_lower = {bool(LOWER_IS_BETTER.get(metric)) for metric in rows["metric"]}
    if len(is_lower) > 1:
        return "points below (percent above, where lower is better)"
    return "percent above" if is_lower == {True} else "points below"


def _below(data: ReportData) -> str:
    if data.frozen:
        return "the final accuracy of the tuned baseline, fixed before these runs"
    return "the final accuracy of the best baseline on the validation set"


def _figure(data: ReportData) -> Figure:
    curves = Curves.of(data)
    situations = islice(_situations(data), MAX_PANELS)
    return target_plot([_curves_of(curves, *each) for each in situations], data.styles)


def _curves_of(
    curves: Curves, rows: pd.DataFrame, situation: Situation, baseline: Mapping[Any, Any]
) -> TargetCurves:
    """From five times as far below the baseline's final score as the table goes, to the best."""
    scores = rows.validation_score.dropna()
    is_lower = bool(LOWER_IS_BETTER.get(baseline["metric"]))
    best = scores.min() if is_lower else scores.max()
    targets = targets_between(_target(baseline, 5 * POINTS[0]), best)
    times = times_of_all(situation, curves, targets)
    seconds = np.array([np.median(times[k], axis=0) for k in range(len(rows))])
    seconds[:, np.isnan(seconds).any(axis=0)] = math.inf
    recorded = situation.rows[0]["target_score"]
    return TargetCurves(rows, targets, seconds, None if pd.isna(recorded) else float(recorded))


def _rows(data: ReportData) -> Iterator[dict[Any, Any]]:
    """For each situation and each of `POINTS` the row of who is first, or of the baseline where
    nobody gets there, or nobody knows.
    """
    found = list(_at_targets(data))
    pages = compared_on_page([rows for _, rows in found if rows is not None])
    places = iter(pages)
    for row, rows in found:
        known = [] if rows is None else list(zip(rows, next(places), strict=True))
        yield row | _first(known, is_known=rows is not None)


def _at_targets(data: ReportData) -> Iterator[tuple[dict[Any, Any], list[dict[Any, Any]] | None]]:
    """For each situation and each of `POINTS` the baseline with that target, and all rows with
    their times there; None where some of these are not known.
    """
    curves = Curves.of(data)
    for _, situation, baseline in _situations(data):
        is_unread = any_unread(situation)
        targets = [data.frozen.get(points, _target(baseline, points)) for points in POINTS]
        times = times_of_all(situation, curves, np.array(targets))
        for at, (points, target) in enumerate(zip(POINTS, targets, strict=True)):
            there = [times[k][:, at] for k in range(len(situation.rows))]
            told = {"baseline": baseline["label"], "points": points, "other_target": target}
            told["is_unread"] = is_unread
            is_known = not any(np.isnan(seconds).any() for seconds in there)
            yield baseline | told, list(_rows_at(situation, there)) if is_known else None


def _rows_at(situation: Situation, times: Sequence[Array]) -> Iterator[dict[Any, Any]]:
    """The rows, with the seconds of their runs at one target."""
    for row, runs, seconds in zip(situation.rows, situation.runs, times, strict=True):
        yield {
            **row,
            "times_s": tuple(seconds),
            "seeds": tuple(runs.seed),
            "runs": len(runs),
            "time_to_accuracy_s": float(np.median(seconds)),
        }


def _situations(data: ReportData) -> Iterator[tuple[pd.DataFrame, Situation, dict[Any, Any]]]:
    """Those with a target and a baseline that was evaluated: the rows whose times are claims, the
    same with their runs, and the best baseline, with what `so_far` says of all.
    """
    runs_of = runs_of_settings(data, settings_of_runs(data))
    for group in data.groups():
        baselines = group.loc[group.is_best_baseline & group.target.notna()]
        if not baselines.empty and not math.isnan(baselines.validation_score.iloc[0]):
            rows = group.loc[group.time_to_accuracy_s.notna()]
            runs = [ended(runs_of[index]) for index in rows.index]
            recorded = [own.target_score.iloc[0] for own in runs]
            records = rows.assign(target_score=recorded).to_dict("records")
            when = so_far(group.time_to_accuracy_s[~group.shared_gpu])
            baseline = baselines.iloc[0].to_dict() | {"so_far": when}
            yield rows, Situation(records, runs), baseline


def _target(baseline: Mapping[Any, Any], points: float) -> float:
    """Easier than the baseline's final score, also where that is a loss below 0."""
    score = baseline["validation_score"]
    is_lower = LOWER_IS_BETTER.get(baseline["metric"])
    return score * (1 + math.copysign(points, score) / 100) if is_lower else score - points / 100


def _first(
    places: Sequence[tuple[dict[Any, Any], dict[str, Any]]], *, is_known: bool
) -> dict[str, Any]:
    """Which of the rows, each with its place, is first, and who ties; "" where all missed, or some
    times are not known.
    """
    first = {"is_known": is_known, "first": "", "seconds": math.inf, "ties": ()}
    ties = tuple(row["label"] for row, place in places if place["ties_with_first"])
    for row, place in places:
        if place["place"] == 1 and not place["ties_with_first"]:
            seconds = row["time_to_accuracy_s"]
            return first | {"first": row["label"], "seconds": seconds, "ties": ties}
    return first


def _cells(rows: pd.DataFrame) -> dict[str, list[str]]:
    records = rows.to_dict("records")
    situations = {header: cells for header, cells in leading(rows).items() if header not in _OF_ONE}
    return situations | {
        _side(rows): [f"{row['points']:g}" for row in records],
        "other target": [f"{row['other_target']:.4g}" for row in records],
        "first": [_name(row) for row in records],
        "seconds": [significant(row["seconds"]) if row["first"] else "-" for row in records],
        "ties with the first": [listed(row["ties"]) or "-" for row in records],
    }


def _finding(mark: str, rows: pd.DataFrame, data: ReportData) -> str:
    """Such as "at all targets that are known, 2 to 0.2 points below the final accuracy of the best
    baseline on the validation set, one algorithm is first or ties in 3 of 6 situations (a and b),
    elsewhere the target decides".
    """
    side = _side(rows)
    groups = [group for _, group in rows.query("is_known").groupby(list(COMPARABLE), dropna=False)]
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        why = "some runs ended before others, or at an easier target"
        if rows.is_unread.any():
            why = "evaluations cannot be read beside the time to the target"
        return sentence([f"{why}, so that no other one can be told"], mark)
    if len(groups) == 1:
        at = "; ".join(
            f"{row['points']:g} {side.split()[1]}, {row['first'] or 'nobody' + row['so_far']}"
            for row in groups[0].to_dict("records")
        )
        baseline = groups[0].baseline.iloc[0]
        whose = said_of(rows, _below(data)) if data.frozen else baseline
        return sentence([f"first at targets so many {side} {whose}: {at}"], mark)
    steady = [_steady(group) for group in groups]
    labels = sorted(set.union(*steady))
    num = sum(map(bool, steady))
    said = f" ({listed(labels)})" if labels else ""
    return sentence(
        [
            f"at all targets that are known, {POINTS[0]:g} to {POINTS[-1]:g} {side} "
            f"{said_of(rows, _below(data))}, one algorithm is first or ties in {num} of "
            f"{counted(len(groups), 'situation')}{said}",
            "elsewhere the target decides who is first" if num < len(groups) else "",
        ],
        mark,
    )


def _steady(group: pd.DataFrame) -> set[str]:
    """Who is first, or ties with the first, at every target."""
    everywhere = [{row["first"], *row["ties"]} for row in group.to_dict("records")]
    return {label for label in set.intersection(*everywhere) if label}
