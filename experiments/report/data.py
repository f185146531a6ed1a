"""All that a report is computed from: runs, their evaluations, and one row for each setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from experiments.report.figures.styles import Styles, area_styles, line_styles
from experiments.report.results_table import (
    COMPARABLE,
    KEYS,
    named,
    results_table,
)
from experiments.report.scores import scored, signs
from experiments.report.tuned import Tuning, load_targets, load_tunings
from experiments.runs.load import load_runs_and_metrics
from host.errors import UserError
from host.words import counted

MAX_PANELS = 12
MAX_LINES = 10
NUM_FIRST = 3
"""A panel shows these places, whatever stands in the others."""

_ON_THE_WAY = ["steps_to_accuracy", "mb_to_accuracy"]


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Runs that are reported together.

    Args:
        runs: of `load_runs`, `named`, with the steps and MB until the target; inf for a miss.
        evaluations: the rows of `load_metrics` with a "score", by the metric of the run's target.
        table: of `results_table`, with the medians of these steps and MB.
        problems: sentences on files that could not be read.
        labels: of all runs, also of those that its figures do not show.
        left_out: what its figures do not show; nothing of the whole data.
        apart: sentences on the runs that are compared with none.
        tunings: the searches that made some of the runs.
        frozen: targets that were fixed before the runs, by points below a tuned baseline; none
            where those of a report follow from its own baseline.
    """

    runs: pd.DataFrame
    evaluations: pd.DataFrame
    table: pd.DataFrame
    problems: list[str]
    labels: tuple[str, ...]
    left_out: str = ""
    apart: tuple[str, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    frozen: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> ReportData:
        """All runs at or below `path`. Raises `UserError` where there is none."""
        runs, metrics = load_runs_and_metrics(path)
        tunings, unread = load_tunings(path)
        problems, apart = [*metrics.attrs["problems"], *unread], tuple(runs.attrs["apart"])
        if runs.empty:
            raise UserError(" ".join([f"There is no run in {path}.", *apart, *problems]))
        metrics.attrs = {}  # pandas copies them with every selection
        evaluations = scored(metrics)
        runs = _with_way(named(runs), evaluations)
        return cls(
            runs=runs,
            evaluations=evaluations,
            table=_with_medians(results_table(runs), runs),
            problems=problems,
            labels=tuple(runs.label),
            apart=apart,
            tunings=tuple(tunings),
            frozen=load_targets(Path(path)),
        )

    @cached_property
    def styles(self) -> Styles:
        """Of every label, the same in all figures."""
        return line_styles(self.labels)

    @cached_property
    def areas(self) -> Styles:
        """The styles of bars and fields."""
        return area_styles(self.styles)

    def groups(self, columns: Sequence[str] = COMPARABLE) -> Iterator[pd.DataFrame]:
        """The rows of `table` that share `columns`: by default those whose times are compared with
        one another.
        """
        yield from (group for _, group in self.table.groupby(list(columns), dropna=False))

    def drawn(self, columns: Sequence[str] = COMPARABLE) -> ReportData:
        """The part of it that fits into a figure with a panel for each of `groups(columns)`: the
        largest situations, the best algorithms, and the first three of each panel of times.
        """
        groups = sorted(self.groups(columns), key=lambda g: (-len(g), -g.runs.sum()))
        labels = _best_labels(self.table)
        hidden = [
            f"{counted(len(items) - limit, noun)} of {len(items)}"
            for items, limit, noun in (
                (groups, MAX_PANELS, "situation"),
                (labels, MAX_LINES, "algorithm"),
            )
            if len(items) > limit
        ]
        if not hidden:
            return self
        table = pd.concat(groups[:MAX_PANELS]).sort_index()
        is_drawn = table.label.isin(labels[:MAX_LINES])
        left_out = f"The figures leave out {' and '.join(hidden)}, which the tables have."
        if tuple(columns) == COMPARABLE:
            order = table.groupby(list(COMPARABLE), dropna=False).cumcount()
            is_further = ~is_drawn & (order < NUM_FIRST) & table.place.notna()
            if is_further.any():
                left_out += (
                    f" The first {NUM_FIRST} of a situation stand in its panel all the same."
                )
            is_drawn |= is_further
        table = table.loc[is_drawn]
        runs = self.runs.merge(table[list(KEYS)], on=list(KEYS))
        return replace(self, runs=runs, table=table, left_out=left_out)


def _best_labels(table: pd.DataFrame) -> list[str]:
    """Baselines and their stand-in, then who is first in some situation, then the others by their
    median place.
    """
    marks = table.assign(is_first=table.place == 1, place=table.place.fillna(math.inf))
    marks["is_baseline"] |= marks.is_best_baseline
    by_label = marks.groupby("label")
    order = pd.DataFrame(
        {
            "other": ~by_label.is_baseline.any(),
            "never_first": ~by_label.is_first.any(),
            "place": by_label.place.median(),
        }
    )
    return list(order.sort_values(["other", "never_first", "place"]).index)


def _with_way(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """`runs` with the steps and MB of the first evaluation that reached the target."""
    completed = runs.loc[runs.status == "completed", ["folder", "metric", "target_score"]]
    rows = evaluations[["folder", "step", "bytes_sent", "score"]].merge(completed, on="folder")
    sign = signs(rows)
    first = rows.loc[sign * rows.score >= sign * rows.target_score].drop_duplicates("folder")
    way = pd.DataFrame(
        {
            "folder": first.folder,
            "steps_to_accuracy": first.step.astype(float),
            "mb_to_accuracy": first.bytes_sent.astype(float) / 1e6,
        }
    )
    has_target = runs.target.notna().to_numpy()
    runs = runs.merge(way, on="folder", how="left")
    is_miss = has_target & runs.steps_to_accuracy.isna().to_numpy()
    runs.loc[is_miss, _ON_THE_WAY] = math.inf
    return runs


def _with_medians(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    medians = runs.groupby(list(KEYS), dropna=False)[_ON_THE_WAY].median().reset_index()
    return table.merge(medians, on=list(KEYS), how="left")
