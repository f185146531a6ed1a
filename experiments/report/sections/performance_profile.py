"""The share of situations that an algorithm solves within a factor of the best time.

Source: E. D. Dolan and J. J. More, Mathematical Programming 91 (2002); as AlgoPerf scores
(arXiv 2306.07179), a miss is an infinite factor.
"""

from __future__ import annotations

import math
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.data import ReportData
from experiments.report.figures.plots import add_legend
from experiments.report.figures.styles import Styles
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE
from experiments.report.section import Section
from host.words import counted, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Performance profile"

MAX_FACTOR = 16.0
_MIN_SITUATIONS = 2


def factors(table: pd.DataFrame) -> pd.DataFrame:
    """Times over the best of their situation: a row for each situation, a column for each algorithm
    that was run in all of them; inf for a miss.

    `attrs["left_out"]` names the other algorithms. `table` is of `results_table`, without the
    rows whose workers shared a GPU.
    """
    table = table.query("target.notna()")
    situations = table.groupby(list(COMPARABLE), dropna=False).ngroup()
    wide = table.pivot_table(
        index=situations, columns="label", values="time_to_accuracy_s", aggfunc="min"
    )
    is_complete = wide.notna().all()
    ratios = wide.loc[:, is_complete]
    best = ratios.min(axis=1)
    with np.errstate(invalid="ignore"):
        ratios = ratios.div(best, axis=0).fillna(math.inf)
    ratios.attrs["left_out"] = list(wide.columns[~is_complete])
    return ratios


def section(data: ReportData) -> Section:
    """Which algorithm is good in most situations, beside being the best in some."""
    table = data.table.query("not shared_gpu")
    profiles = [(mark, factors(rows)) for mark, rows in kinds(table)]
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
        notes=[
            f"{mark}not in the profile, since not run in every situation: {listed(left_out)}."
            for mark, ratios in known
            if (left_out := ratios.attrs["left_out"])
        ],
        drawings={"performance_profile": partial(_figure, known, data)},
    )


def _finding(mark: str, ratios: pd.DataFrame) -> str:
    within = (ratios <= 2).mean()
    order = within.sort_values(ascending=False, kind="stable")
    if order.iloc[0] == 0:
        return sentence([f"none of {counted(len(ratios), 'situation')} is solved"], mark)
    best = list(order.index[order == order.iloc[0]])
    return sentence(
        [
            f"of {counted(len(ratios), 'situation')}, {listed(best)} "
            f"{'solves' if len(best) == 1 else 'solve'} the most within twice the best time: "
            f"{100 * order.iloc[0]:.0f} %"
        ],
        mark,
    )


def _figure(known: list[tuple[str, pd.DataFrame]], data: ReportData) -> Figure:
    import matplotlib
    import seaborn
    from matplotlib.figure import Figure

    drawn = set(data.drawn().table.label)
    theme: Any = seaborn.axes_style("whitegrid")
    with matplotlib.rc_context(theme):
        figure = Figure(figsize=(max(7, 4.8 * len(known)), 4.6), layout="constrained")
        for place, (mark, ratios) in enumerate(known, start=1):
            axes = figure.add_subplot(1, len(known), place)
            _draw(axes, ratios.loc[:, [c for c in ratios if c in drawn]], data.styles)
            title = f"{mark}{counted(len(ratios), 'situation')}"
            axes.set_title(textwrap.fill(title, 45), fontsize="medium")
        add_legend(figure, list(data.styles))
    return figure


def _draw(axes: Axes, ratios: pd.DataFrame, styles: Styles) -> None:
    for label in ratios:
        reached = np.sort(ratios[label][ratios[label] <= MAX_FACTOR])
        at = np.concatenate([[1], reached, [MAX_FACTOR]])
        share = np.concatenate([[0], np.arange(1, len(reached) + 1), [len(reached)]]) / len(ratios)
        axes.step(
            at, share, where="post", label=label, markevery=slice(1, -1), **styles[str(label)]
        )
    axes.set(xscale="log", xlim=(0.95, MAX_FACTOR), ylim=(-0.03, 1.05))
    ticks = [1, 2, 4, 8, 16]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="time to the target over the best", ylabel="share of situations")
