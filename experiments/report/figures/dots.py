"""Times to accuracy as dots with intervals, a panel for each situation."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe, said_of
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import LINE_IN, SMALL, narrow, set_log_axis
from experiments.report.figures.networks import fast_first
from experiments.report.figures.styles import Styles
from experiments.report.phrases import situation
from experiments.report.results_table import AT_WORK
from host.words import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME_WIDTH = 17
_ROW_GAP_IN = 0.02
_TICKS = 5
_BESIDE = 1.045
"""Where the times stand, as a part of the panel's width."""


def dots(data: ReportData) -> Figure | None:
    """A row for each algorithm, the fastest on top; None where no time is known."""
    groups = [group.query("not shared_gpu") for group in data.groups()]
    groups = [g for g in groups if g.time_to_accuracy_s.between(0, math.inf, "neither").any()]
    if not groups:
        return None
    everything = pd.concat(groups)
    panels = [_panel(group, everything, data.styles) for group in fast_first(groups)]
    return column(panels, describe(everything, TITLE_COLUMNS), _note(everything))


def _note(table: pd.DataFrame) -> str:
    note = "Large: the median; small: seeds; bars: 95 % intervals."
    if table.is_best_baseline.any():
        note += " Dashed: the best baseline."
    if table.missed.any():
        note += " Crosses at the edge: half of the runs or more missed."
    return note


def _panel(group: pd.DataFrame, everything: pd.DataFrame, styles: Styles) -> Panel:
    names = [narrow(label, _NAME_WIDTH) for label in group.label]
    sizes = [(name.count("\n") + 1) * LINE_IN + _ROW_GAP_IN for name in names]
    middles = np.cumsum(sizes) - np.array(sizes) / 2
    return Panel(
        title=situation(group, everything),
        draw=partial(_draw, group=group, names=names, heights=middles, styles=styles),
        height_in=sum(sizes) + _ROW_GAP_IN,
    )


def _draw(
    axes: Axes, *, group: pd.DataFrame, names: list[str], heights: np.ndarray, styles: Styles
) -> None:
    """Seconds on a logarithmic axis, inches from the top on the other."""
    rows = group.to_dict("records")
    known = [t for row in rows for t in (*row["times_s"], row["low"], row["high"])]
    known = [t for t in known if 0 < t < math.inf]
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.06, 1.03)
    low, high = low / margin, high * margin
    set_log_axis(axes.xaxis, low, high, _TICKS)
    for row, height in zip(rows, heights, strict=True):
        style = {**styles[row["label"]], "linestyle": "none"}
        _whisker(axes, height, row, high, style["color"])
        seeds_s = np.array([t for t in row["times_s"] if t < math.inf])
        axes.plot(seeds_s, np.full(len(seeds_s), height), ".", ms=2.2, color="0.1", mew=0, zorder=4)
        if row["time_to_accuracy_s"] < math.inf:
            axes.plot(row["time_to_accuracy_s"], height, **style, ms=4, zorder=3)
        elif math.isinf(row["time_to_accuracy_s"]):
            axes.plot(high, height, "x", color="0.2", ms=4, clip_on=False, zorder=3)
        axes.annotate(
            _said(row),
            (_BESIDE, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL,
            annotation_clip=False,
        )
    for row in rows:
        if row["is_best_baseline"] and row["time_to_accuracy_s"] < math.inf:
            axes.axvline(row["time_to_accuracy_s"], color="0.3", ls="--", lw=0.6, zorder=0.9)
    axes.set_ylim(heights[-1] + heights[0], 0)
    axes.set_yticks(heights, names)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(said_of(group, "time to accuracy (s)"))


def _whisker(axes: Axes, height: float, row: dict, edge: float, color: str) -> None:
    """The interval; it goes to the edge where it has no end."""
    if math.isnan(row["low"]) or math.isinf(row["low"]):
        return
    axes.plot([row["low"], min(row["high"], edge)], [height, height], color=color, lw=1.2)


def _said(row: dict) -> str:
    """Such as "2.5", "2.5, tie", "2.5, missed 1/3", "missed 3/3" or "not ended"."""
    missed = f"missed {row['missed']}/{row['runs']}" if row["missed"] else ""
    median_s = row["time_to_accuracy_s"]
    if math.isnan(median_s):
        return AT_WORK
    time = significant(median_s) if median_s < math.inf else ""
    tie = "tie" if row["ties_with_first"] else ""
    return ", ".join(part for part in (time, tie, missed) if part)
