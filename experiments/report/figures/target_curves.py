"""Time over the target: who would be first, were another accuracy asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe
from experiments.report.data import MAX_LINES, NUM_FIRST
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import End, height_in, name_ends, set_log_axis
from experiments.report.figures.networks import fast_first
from experiments.report.figures.styles import Styles
from experiments.report.phrases import situation
from experiments.report.statistics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_TARGETS = 60
_PANEL_IN = 1.25


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
    def drawn_target(self) -> float | None:
        """`recorded`, where it is on the axis: the curves alone decide how far that goes."""
        low, high = self.targets.min(), self.targets.max()
        return self.recorded if self.recorded is not None and low <= self.recorded <= high else None

    @property
    def shown(self) -> list[int]:
        """The positions of the rows to draw: the first three at the target of the runs, the
        baseline, and who is first at most targets.
        """
        reached = self.seconds[:, np.isfinite(self.seconds).any(axis=0)]
        if not reached.size:
            return []
        firsts = pd.Series(reached.argmin(axis=0)).value_counts(sort=True, ascending=False)
        order = sorted(firsts.index, key=lambda k: (-firsts[k], k))
        rows = enumerate(self.rows.to_dict("records"))
        fixed = [
            k for k, row in rows if (k < NUM_FIRST and row["place"] > 0) or row["is_best_baseline"]
        ]
        return sorted({*fixed, *order[: max(MAX_LINES + 1 - len(fixed), 1)]})


def target_plot(situations: Sequence[TargetCurves], styles: Styles) -> Figure:
    """A panel for each situation, from fast networks to slow ones."""
    by_rows = {id(curves.rows): curves for curves in situations}
    groups = fast_first([curves.rows for curves in situations])
    everything = pd.concat(groups)
    panels = [_panel(by_rows[id(group)], everything, styles) for group in groups]
    dotted = any(curves.drawn_target is not None for curves in situations)
    note = "Dotted: the target of the runs. " * dotted + "A line ends where half of the seeds miss."
    return column(panels, describe(everything, TITLE_COLUMNS), note)


def _panel(curves: TargetCurves, everything: pd.DataFrame, styles: Styles) -> Panel:
    names = [str(curves.rows.label.iloc[k]) for k in curves.shown]
    frame_in = height_in(names, _PANEL_IN)
    return Panel(
        title=situation(curves.rows, everything),
        draw=partial(_draw, curves=curves, styles=styles, frame_in=frame_in),
        height_in=frame_in,
    )


def targets_between(easiest: float, hardest: float) -> Array:
    """Targets from easy to hard; either may be the lower."""
    return np.linspace(easiest, hardest, NUM_TARGETS)


def _draw(axes: Axes, *, curves: TargetCurves, styles: Styles, frame_in: float) -> None:
    """A logarithmic clock; each line ends where half of its seeds miss, with its name beside it."""
    ends, known = [], []
    for k in curves.shown:
        is_reached = np.isfinite(curves.seconds[k])
        if not is_reached.any():
            continue
        label = str(curves.rows.label.iloc[k])
        style: dict[str, Any] = {**styles[label], "marker": ""}
        targets, seconds = curves.targets[is_reached], curves.seconds[k][is_reached]
        axes.plot(targets, seconds, drawstyle="steps-mid", label=label, **style)
        ends.append(End(float(targets[-1]), float(seconds[-1]), label, style["color"]))
        known.extend(seconds[seconds > 0])
    if curves.drawn_target is not None:
        axes.axvline(curves.drawn_target, color="0.3", linestyle=":", linewidth=0.8)
    axes.set(xlabel=f"target: {curves.rows.metric.iloc[0]}", ylabel="seconds to it")
    axes.set_xlim(curves.targets[0], curves.targets[-1])
    if known:
        set_log_axis(axes.yaxis, min(known) / 1.1, max(known) * 1.1, 5)
        name_ends(axes, ends, frame_in)
