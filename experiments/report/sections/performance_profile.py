"""The share of situations that an algorithm solves within a factor of the best time.

Source: E. D. Dolan and J. J. More, Mathematical Programming 91 (2002); as AlgoPerf scores
(arXiv 2306.07179), a miss is an infinite factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import End, height_in, name_ends, set_log_axis
from experiments.report.figures.styles import Styles
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE
from experiments.report.section import Section
from experiments.report.targets.trainings import sets_of_trainings
from host.words import counted, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Performance profile"

MAX_FACTOR = 16.0
MAX_NAMES = 10
_PANEL_IN = 1.5
_MIN_SITUATIONS = 2


def factors(table: pd.DataFrame, trainings: pd.Series | None = None) -> pd.DataFrame:
    """Times over the best of their situation, whosever that is: a row for each situation in which
    runs of at least half of the algorithms have ended, a column for each algorithm that was run in
    all of these; inf for a miss.

    `attrs["at_work"]` names those of which no run has ended in some of them, `attrs["left_out"]`
    the other algorithms, and `attrs["num_other"]` counts the other situations; `attrs["weights"]`
    are of the situations: those of one set of `trainings` (of `sets_of_trainings`) count as one
    together. `table` is of `results_table`, without the rows whose workers shared a GPU.
    """
    table = table.query("target.notna()")
    situations = table.groupby(list(COMPARABLE), dropna=False).ngroup()
    wide = table.pivot_table(
        index=situations, columns="label", values="time_to_accuracy_s", aggfunc="min"
    )
    has_many = wide.notna().sum(axis=1) >= len(wide.columns) / 2
    num_other, wide = int((~has_many).sum()), wide.loc[has_many]
    table = table.loc[situations.isin(wide.index)]
    situations = situations.loc[table.index]
    is_complete = wide.notna().all()
    ratios = wide.loc[:, is_complete]
    best = wide.min(axis=1)
    with np.errstate(invalid="ignore"):
        over_best = ratios.div(best, axis=0).fillna(math.inf)
    is_best = ratios.eq(best, axis=0) & (ratios < math.inf)
    ratios = over_best.mask(is_best, 1.0)  # also where the best time is 0
    sets = situations if trainings is None else trainings.loc[table.index]
    of_situation = sets.groupby(situations).first().loc[wide.index]
    at_work = set(table.label[table.time_to_accuracy_s.isna()]) - set(ratios.columns)
    ratios.attrs["at_work"] = sorted(at_work)
    ratios.attrs["left_out"] = [k for k in wide.columns[~is_complete] if k not in at_work]
    ratios.attrs["num_other"] = num_other
    ratios.attrs["weights"] = (1 / of_situation.map(of_situation.value_counts())).to_dict()
    return ratios


def section(data: ReportData) -> Section:
    """Which algorithm is good in most situations, beside being the best in some."""
    table = data.table.query("not shared_gpu")
    trainings = sets_of_trainings(data)
    profiles = [(mark, factors(rows, trainings)) for mark, rows in kinds(table)]
    known = [
        (mark, ratios)
        for mark, ratios in profiles
        if len(ratios) >= _MIN_SITUATIONS and len(ratios.columns) > 1
    ]
    if not known:
        return Section(
            finding="No two algorithms were run in the same two situations or more: no profile."
        )
    return Section(
        finding=" ".join(_finding(mark, ratios) for mark, ratios in known),
        notes=[note for mark, ratios in known for note in _notes(mark, ratios)],
        drawings={"performance_profile": partial(_figure, known, data)},
    )


def _notes(mark: str, ratios: pd.DataFrame) -> Iterator[str]:
    for name, what in (("left_out", "run"), ("at_work", "ended")):
        if labels := ratios.attrs[name]:
            why = f"since not {what} in every situation"
            yield f"{mark}not in the profile, {why}: {listed(labels)}."
    if num := ratios.attrs["num_other"]:
        yield f"{mark}not in the profile: {counted(num, 'situation')} of few of the algorithms."
    if _num_sets(ratios) < len(ratios):
        yield f"{mark}situations that share trainings count as one together."


def _num_sets(ratios: pd.DataFrame) -> int:
    return round(sum(ratios.attrs["weights"].values()))


def _share(ratios: pd.DataFrame, factor: float) -> pd.Series:
    """Of each algorithm: of all situations, by their weights, those solved within a factor."""
    weights = pd.Series(ratios.attrs["weights"])
    return (ratios <= factor).mul(weights, axis=0).sum() / weights.sum()


def _counted(ratios: pd.DataFrame) -> str:
    """Such as "18 situations" or "18 situations of 3 sets of trainings"."""
    said, sets = counted(len(ratios), "situation"), _num_sets(ratios)
    if sets == len(ratios):
        return said
    return f"{said} of {sets} sets of trainings" if sets > 1 else f"{said} of the same trainings"


def _finding(mark: str, ratios: pd.DataFrame) -> str:
    within = _share(ratios, 2)
    order = within.sort_values(ascending=False, kind="stable")
    if order.iloc[0] == 0:
        by = _of_which(ratios, "by")
        within_twice = f" within twice the best time {by}" if by else ""
        return sentence([f"none of {_counted(ratios)} is solved{within_twice}"], mark)
    best, of = list(order.index[order == order.iloc[0]]), _of_which(ratios, ", of")
    return sentence(
        [
            f"of {_counted(ratios)}, {listed(best)} "
            f"{'solves' if len(best) == 1 else 'solve'} the most within twice the best time: "
            f"{100 * order.iloc[0]:.0f} %{of}"
        ],
        mark,
    )


def _of_which(ratios: pd.DataFrame, word: str) -> str:
    """What to add where other algorithms were run in some of the situations."""
    if not ratios.attrs["left_out"] and not ratios.attrs["at_work"]:
        return ""
    return f"{word} the {counted(len(ratios.columns), 'algorithm')} that were run in all of them"


def _figure(known: list[tuple[str, pd.DataFrame]], data: ReportData) -> Figure:
    baselines = set(data.table.label[data.table.is_best_baseline])
    panels = []
    for mark, ratios in known:
        drawn = _drawn(ratios, baselines)
        frame_in = height_in(drawn, _PANEL_IN)
        draw = partial(_draw, ratios=ratios, drawn=drawn, styles=data.styles, frame_in=frame_in)
        panels.append(Panel(title=f"{mark}{_counted(ratios)}", draw=draw, height_in=frame_in))
    return column(panels, describe(data.table, TITLE_COLUMNS))


def _drawn(ratios: pd.DataFrame, baselines: set[str]) -> list[str]:
    """Those that solve the most within any factor, and baselines."""
    within = [_share(ratios, 2.0**power) for power in np.arange(0, 4.01, 0.25)]
    reach = pd.concat(within, axis=1).sum(axis=1).to_dict()
    order = sorted(reach, key=lambda label: -reach[label])
    return [name for at, name in enumerate(order) if at < MAX_NAMES or name in baselines]


def _draw(
    axes: Axes, *, ratios: pd.DataFrame, drawn: list[str], styles: Styles, frame_in: float
) -> None:
    weights: dict[Any, float] = ratios.attrs["weights"]
    total, ends = sum(weights.values()), []
    for label in drawn:
        reached = ratios.loc[ratios[label] <= MAX_FACTOR, label].to_dict()
        order = sorted(reached, key=lambda situation: reached[situation])
        shares = [0.0, *accumulate(weights[situation] / total for situation in order)]
        at, share = [1.0, *(reached[k] for k in order), MAX_FACTOR], [*shares, shares[-1]]
        style = {**styles[label], "marker": ""}
        axes.step(at, share, where="post", label=label, **style)
        ends.append(End(MAX_FACTOR, shares[-1], label, style["color"]))
    set_log_axis(axes.xaxis, 0.95, MAX_FACTOR)
    ticks = [1, 2, 4, 8, 16]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set(ylim=(-0.03, 1.05))
    axes.set(xlabel="time to the target over the best", ylabel="share of situations")
    name_ends(axes, ends, frame_in)
