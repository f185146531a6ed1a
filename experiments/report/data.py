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
    AT_WORK,
    COMPARABLE,
    KEYS,
    named,
    results_table,
)
from experiments.report.scores import scored, ways_to_target
from experiments.report.tuned import Tuning, load_targets, load_tunings
from experiments.runs.load import load_runs_and_metrics
from experiments.runs.summary import HAVE_TIMES
from host.errors import UserError
from host.remaining import Work
from host.words import counted

MAX_PANELS = 12
MAX_LINES = 5
"""Of a panel, beside the baseline's."""

NUM_FIRST = 3
"""A panel shows these places, however many they are."""

_TIME = "time_to_accuracy_s"
_ON_THE_WAY = ["steps_to_accuracy", "mb_to_accuracy"]
_COLUMNS, _OF_WAY = ("step", "bytes_sent", "time_s"), [*_ON_THE_WAY, _TIME]
"""Columns of evaluations, and what they are at the target."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Runs that are reported together.

    Args:
        runs: of `load_runs`, `named`, with the steps and MB until the target; inf for a miss, NaN
            where rows that say them are lost. "is_unread": it may have reached its target, and
            all of its evaluations are lost, or the one after its last step.
        evaluations: the rows of `load_metrics` with a "score", by the metric of the run's target.
        table: of `results_table`, with the medians of these steps and MB.
        problems: sentences on files that could not be read.
        labels: of all runs, also of those that its figures do not show.
        left_out: what a figure of it does not show; nothing of the whole data.
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
    def load(cls, path: str | Path, work: Work | None = None) -> ReportData:
        """All runs at or below `path`; reading them is a part of a command's `work`. Raises
        `UserError` where there is none.
        """
        runs, metrics = load_runs_and_metrics(path, work)
        tunings, unread = load_tunings(path)
        problems = [*metrics.attrs["problems"], *unread]
        if runs.empty:
            raise UserError(
                " ".join([f"There is no run in {path}.", *runs.attrs["apart"], *problems])
            )
        data = cls.of(runs, metrics)
        frozen = load_targets(Path(path), data.runs.metric[data.runs.target.notna()])
        return replace(data, problems=problems, tunings=tuple(tunings), frozen=frozen)

    @classmethod
    def of(cls, runs: pd.DataFrame, metrics: pd.DataFrame) -> ReportData:
        """Runs and their rows, as `load_runs_and_metrics` gives them."""
        problems, apart = metrics.attrs.pop("problems", []), runs.attrs.get("apart", ())
        metrics.attrs = {}  # pandas copies them with every selection
        evaluations = scored(metrics, runs)
        runs = _with_unread(_with_way(named(runs), evaluations), metrics, evaluations)
        return cls(
            runs=runs,
            evaluations=evaluations,
            table=_with_medians(results_table(runs), runs),
            problems=problems,
            labels=tuple(runs.label),
            apart=tuple(apart),
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

    def drawn(self, columns: Sequence[str] = COMPARABLE, *, most: int = MAX_LINES) -> ReportData:
        """The part of it that a figure with a panel for each of `groups(columns)` shows: of the
        largest situations those who are best there, and the baseline.
        """
        groups = sorted(self.groups(columns), key=lambda g: (-len(g), -g.runs.sum()))
        chosen = [foremost(group, most) for group in groups[:MAX_PANELS]]
        longest = max((group.label.nunique() for group in groups[:MAX_PANELS]), default=0)
        hidden = len(groups) - len(chosen)
        said = [
            f"The figure leaves out {counted(hidden, 'situation')} of {len(groups)}, which the "
            "tables have."
            if hidden
            else "",
            f"A panel of it shows the first {most} and the baseline, of up to {longest} algorithms."
            if any(len(a) < len(b) for a, b in zip(chosen, groups, strict=False))
            else "",
        ]
        table = pd.concat(chosen).sort_index()
        runs = self.runs.merge(table[list(KEYS)], on=list(KEYS))
        return replace(self, runs=runs, table=table, left_out=" ".join(filter(None, said)))


def foremost(group: pd.DataFrame, most: int, by: str = "place") -> pd.DataFrame:
    """The rows of a panel that it shows: of `most` algorithms that are the best there by a column,
    of the best baseline, and of those with one of the first three places, in their order.
    """
    marks = group.assign(rank=group[by].fillna(math.inf), order=range(len(group)))
    by_label = marks.groupby("label")
    order = pd.DataFrame(
        {
            "best": by_label["rank"].min(),
            "median": by_label["rank"].median(),
            "order": by_label.order.min(),
        }
    ).sort_values(["best", "median", "order"])
    labels = set(order.index[:most]) | set(group.label[group.is_best_baseline])
    if by == "place":
        order_there = group.groupby(list(COMPARABLE), dropna=False).cumcount()
        labels |= set(group.label[(order_there < NUM_FIRST) & group.place.notna()])
    return group.loc[group.label.isin(labels)]


def _with_way(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """`runs` with the steps and MB until the target, and with the seconds in place of those that a
    run records, which are of the evaluation that found it reached.
    """
    timed = runs.loc[runs.status.isin(HAVE_TIMES), ["folder", "metric", "target_score"]]
    rows = evaluations[["folder", *_COLUMNS, "score"]].merge(timed, on="folder")
    way = ways_to_target(rows, _COLUMNS).set_axis(_OF_WAY, axis=1)
    is_reached = runs.status.isin(HAVE_TIMES) & runs.time_to_accuracy_s.notna()
    may_miss = (runs.target.notna() & (runs.status != AT_WORK) & ~is_reached).to_numpy()
    told_s = runs.time_to_accuracy_s
    runs = runs.drop(columns=_TIME).join(way, on="folder")
    runs[_TIME] = runs[_TIME].fillna(told_s).where(told_s.notna())
    runs["mb_to_accuracy"] /= 1e6
    is_miss = may_miss & runs.steps_to_accuracy.isna().to_numpy()
    runs.loc[is_miss, _ON_THE_WAY] = math.inf
    return runs


def _with_unread(
    runs: pd.DataFrame, metrics: pd.DataFrame, evaluations: pd.DataFrame
) -> pd.DataFrame:
    """`runs` with "is_unread"; an evaluation follows the last step, also one without a score. A run
    whose scores were no numbers, and which had no time, has lost nothing.
    """
    last = runs.folder.map(
        metrics.loc[metrics["kind"] == "evaluation"].groupby("folder").step.max()
    )
    is_cut = (last < runs.steps).fillna(False)
    is_told = last.notna() & runs.time_to_accuracy_s.isna()
    is_lost = is_cut | ~(runs.folder.isin(evaluations.folder) | is_told)
    return runs.assign(is_unread=runs.status.isin(HAVE_TIMES) & is_lost.astype(bool))


def _with_medians(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    medians = runs.groupby(list(KEYS), dropna=False)[_ON_THE_WAY].median().reset_index()
    return table.merge(medians, on=list(KEYS), how="left")
