"""Bars of the times to accuracy, a panel for each situation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.report.cells import said_of
from experiments.report.data import ReportData
from experiments.report.figures.panels import panels
from experiments.report.figures.styles import Styles
from experiments.report.phrases import wrapped
from host.words import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_NAME_WIDTH = 24


def bars(data: ReportData) -> Figure | None:
    """A bar for each algorithm, the fastest on top; None where no time is known."""
    groups = [group.query("not shared_gpu") for group in data.groups()]
    groups = [g for g in groups if (g.time_to_accuracy_s < math.inf).any()]
    if not groups:
        return None
    num_bars = max(2, *map(len, groups))
    num_lines = max(sum(map(_num_lines, group.label)) for group in groups)

    def draw(axes: Axes, group: pd.DataFrame) -> None:
        _draw(axes, group, data.areas)
        axes.set_ylim(num_bars - 0.4, -0.6)

    return panels(groups, draw, height_in=1.1 + 0.32 * max(num_bars, num_lines))


def _draw(axes: Axes, group: pd.DataFrame, styles: Styles) -> None:
    """Medians as bars, intervals as whiskers, seeds as dots; times in figures beside them."""
    rows = group.to_dict("records")
    known = [t for row in rows for t in row["times_s"] if t < math.inf]
    end_s = max(known) or 1.0
    for height, row in enumerate(rows):
        median_s = row["time_to_accuracy_s"]
        reaches_s = max([t for t in row["times_s"] if t < math.inf], default=0.0)
        if median_s < math.inf:
            axes.barh(height, median_s, height=0.7, linewidth=0.8, **styles[row["label"]])
            reaches_s = max(reaches_s, _whisker(axes, height, row, end_s))
        seeds_s = np.array([t for t in row["times_s"] if t < math.inf])
        axes.plot(seeds_s, np.full(len(seeds_s), height), "k.", ms=4)
        axes.text(reaches_s + 0.02 * end_s, height, _said(row), va="center", fontsize="small")
    room = 1.8 if any(row["missed"] for row in rows) else 1.45  # for the words
    axes.set(xlabel=said_of(group, "time to accuracy (s)"), xlim=(0, room * end_s))
    axes.set_yticks(range(len(rows)), [wrapped(row["label"], _NAME_WIDTH) for row in rows])
    axes.grid(visible=False, axis="y")


def _num_lines(label: str) -> float:
    """The height of a bar, in lines: each further line of its name adds 0.6."""
    return 1 + 0.6 * wrapped(label, _NAME_WIDTH).count("\n")


def _whisker(axes: Axes, height: int, row: dict, end_s: float) -> float:
    """The interval, with an arrow where it has no end; returns how far it reaches."""
    if math.isnan(row["low"]):
        return 0.0
    if row["high"] < math.inf:
        axes.plot([row["low"], row["high"]], [height, height], color="0.1", linewidth=1.5)
        return row["high"]
    reach_s = 1.08 * end_s
    arrow = {"arrowstyle": "->", "color": "0.1", "linewidth": 1.5}
    axes.annotate("", (reach_s, height), (row["low"], height), arrowprops=arrow)
    return reach_s


def _said(row: dict) -> str:
    """Such as "2.5", "2.5, tie", "2.5, missed 1/3" or "missed 3/3"."""
    missed = f"missed {row['missed']}/{row['runs']}" if row["missed"] else ""
    median_s = row["time_to_accuracy_s"]
    time = significant(median_s) if median_s < math.inf else ""
    tie = "tie" if row["ties_with_first"] else ""
    return ", ".join(part for part in (time, tie, missed) if part)
