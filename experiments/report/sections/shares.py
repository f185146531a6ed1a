"""Which classes or sources of examples each worker has for itself."""

from __future__ import annotations

from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import describe
from experiments.report.data import ReportData
from experiments.report.phrases import sentence
from experiments.report.section import Section
from host.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What each worker learns from"

MAX_PANELS = 6
_OF = ["task", "partition", "workers"]


def section(data: ReportData) -> Section:
    """A map of the examples of each class at each worker, for the first seed of each partition."""
    runs = data.runs.loc[data.runs.partition.notna() & data.runs.shares.notna()]
    runs = runs.sort_values("seed", kind="stable").drop_duplicates(_OF).sort_values(_OF)
    if runs.empty:
        return Section(
            finding="No worker had examples of its own (data.partition=iid): all shared all."
        )
    drawn = runs.head(MAX_PANELS)
    left_out = len(runs) - len(drawn)
    return Section(
        finding=sentence([_finding(run) for run in drawn.to_dict("records")]),
        notes=[f"The figure leaves out {counted(left_out, 'partition')}."] if left_out else [],
        drawings={"shares": partial(_figure, drawn)},
    )


def _finding(run: dict[Any, Any]) -> str:
    """Such as "by_class on 4 workers: the median worker has 3 of 10 classes, 90 % of its examples
    of the most frequent one".
    """
    counts = np.array(run["shares"]["counts"])
    held = float(np.median((counts > 0).sum(1)))
    most = float(np.median(counts.max(1) / counts.sum(1)))
    sizes = counts.sum(1)
    spread = "" if np.ptp(sizes) <= 1 else f", and shares have {sizes.min():,} to {sizes.max():,}"
    return (
        f"{run['partition']} on {counted(len(counts), 'worker')}: the median worker has {held:g} "
        f"of {counts.shape[1]} {run['shares']['of']}, {100 * most:.0f} % of its examples of one of "
        f"them{spread}"
    )


def _figure(runs: pd.DataFrame) -> Figure:
    """A panel a partition: a row a worker, a column a class, dark where it has many of its own."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_columns = min(len(runs), 3)
    num_rows = -(-len(runs) // num_columns)
    figure = Figure(figsize=(max(5, 3.6 * num_columns), 3.4 * num_rows), layout="constrained")
    image = None
    for place, (index, run) in enumerate(runs.iterrows(), start=1):
        axes = figure.add_subplot(num_rows, num_columns, place)
        counts = np.array(run["shares"]["counts"])
        parts = 100 * counts / counts.sum(1, keepdims=True)
        image = axes.imshow(parts, aspect="auto", cmap="Blues", vmin=0, vmax=100, origin="lower")
        axes.set(xlabel=run["shares"]["of"], ylabel="worker")
        axes.set_title(fill(describe(runs.loc[[index]], _OF), 34), fontsize="small")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    assert image is not None
    figure.colorbar(image, ax=figure.axes, label="% of a worker's examples")
    return figure
