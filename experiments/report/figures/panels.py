"""Figures of several panels, one for each group of runs that may be compared."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe
from experiments.report.phrases import situation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Axes", pd.DataFrame], None]

_PANEL_WIDTH_IN = 4.8
_TITLE_WIDTH = 36  # characters: names beside a panel leave it little more than three inches


def panels(
    groups: Sequence[pd.DataFrame], draw: Draw, *, height_in: float, num_columns: int = 2
) -> Figure:
    """`draw` called for each group's panel, below a title of what all groups share."""
    import matplotlib
    import seaborn
    from matplotlib.figure import Figure

    everything = pd.concat(groups)
    num_columns = min(len(groups), num_columns)
    num_rows = math.ceil(len(groups) / num_columns)
    width_in = max(7, _PANEL_WIDTH_IN * num_columns)
    theme: Any = seaborn.axes_style("whitegrid") | {"hatch.linewidth": 0.5}
    with matplotlib.rc_context(theme):
        figure = Figure(figsize=(width_in, height_in * num_rows + 1), layout="constrained")
        for place, group in enumerate(groups, start=1):
            axes = figure.add_subplot(num_rows, num_columns, place)
            draw(axes, group)
            axes.set_title(
                textwrap.fill(situation(group, everything), _TITLE_WIDTH), fontsize="medium"
            )
        figure.suptitle(textwrap.fill(describe(everything, TITLE_COLUMNS), int(9 * width_in)))
        figure.draw_without_rendering()  # while its theme holds
    return figure
