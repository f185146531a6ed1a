"""Time over the target: who would be first, were another accuracy asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.figures.panels import panels
from experiments.report.figures.styles import Styles
from experiments.report.statistics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_TARGETS = 60
MAX_LINES = 5
"""Those who are first at most targets; the baseline comes on top."""

_LEAST_GAP = 0.085
"""Between two names, as a part of the panel's height."""


@dataclass(frozen=True)
class TargetCurves:
    """One situation: the median seconds of each row of `rows` to each of `targets`.

    Attributes:
        rows: settings, of the report's table.
        targets: from easy to hard.
        seconds: `[row, target]`; inf where it was missed, and at targets at which some row's is not
            known.
        recorded: the target that the runs had.
    """

    rows: pd.DataFrame
    targets: Array
    seconds: Array
    recorded: float | None

    @property
    def shown(self) -> list[int]:
        """The positions of the rows to draw: who is first at most targets, and the baseline."""
        reached = self.seconds[:, np.isfinite(self.seconds).any(axis=0)]
        if not reached.size:
            return []
        firsts = pd.Series(reached.argmin(axis=0)).value_counts(sort=True)
        best = [k for k, is_best in enumerate(self.rows.is_best_baseline) if is_best]
        return sorted({*firsts.index[:MAX_LINES], *best})


def target_plot(situations: Sequence[TargetCurves], styles: Styles) -> Figure:
    """A panel for each situation."""
    by_rows = {id(curves.rows): curves for curves in situations}

    def draw(axes: Axes, group: pd.DataFrame) -> None:
        _draw(axes, by_rows[id(group)], styles)

    return panels([curves.rows for curves in situations], draw, height_in=3.0)


def targets_between(easiest: float, hardest: float) -> Array:
    """Targets from easy to hard; either may be the lower."""
    return np.linspace(easiest, hardest, NUM_TARGETS)


def _draw(axes: Axes, curves: TargetCurves, styles: Styles) -> None:
    """A logarithmic clock; each line ends where half of its seeds miss, with its name beside it."""
    from matplotlib.ticker import LogLocator, NullLocator

    ends: list[tuple[float, float, str]] = []
    for k in curves.shown:
        is_reached = np.isfinite(curves.seconds[k])
        if not is_reached.any():
            continue
        label = str(curves.rows.label.iloc[k])
        style: dict[str, Any] = {**styles[label], "marker": ""}
        targets, seconds = curves.targets[is_reached], curves.seconds[k][is_reached]
        axes.plot(targets, seconds, drawstyle="steps-mid", linewidth=1.6, **style)
        ends.append((float(targets[-1]), float(seconds[-1]), label))
    if curves.recorded is not None:
        axes.axvline(curves.recorded, color="0.3", linestyle=":", linewidth=1)
    metric = str(curves.rows.metric.iloc[0])
    axes.set(yscale="log", xlabel=f"target: {metric}", ylabel="seconds to it")
    axes.set_xlim(curves.targets[0], curves.targets[-1])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    if ends:
        _name(axes, ends, styles)


def _name(axes: Axes, ends: Sequence[tuple[float, float, str]], styles: Styles) -> None:
    """Each line's name at the right edge, as high as its end, where names leave room for it."""
    low, high = map(math.log, axes.get_ylim())
    heights = [(math.log(seconds) - low) / (high - low) for _, seconds, _ in ends]
    for k, height in zip(*_spread(heights), strict=True):
        target, seconds, label = ends[k]
        axes.annotate(
            label,
            xy=(target, seconds),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=styles[label]["color"],
            va="center",
            fontsize="small",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": styles[label]["color"], "linewidth": 0.5},
        )


def _spread(heights: Sequence[float]) -> tuple[list[int], list[float]]:
    """The positions of `heights` from low to high, and heights as near as `_LEAST_GAP` allows."""
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    placed: list[float] = []
    for k in order:
        placed.append(max(heights[k], placed[-1] + _LEAST_GAP if placed else -math.inf))
    top = 1.0
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], top)
        top = placed[at] - _LEAST_GAP
    return order, placed
