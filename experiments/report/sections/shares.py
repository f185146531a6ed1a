"""Which classes or sources of examples each worker has for itself, and what that costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import describe, leading, said_of
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.phrases import sentence
from experiments.report.results_table import KEYS, varies
from experiments.report.scores import signs
from experiments.report.section import PageTable, Section
from host.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "What each worker learns from"

MAX_PANELS = 6
_COLORS = "Blues"
_OF = ["task", "partition", "workers"]
_ROW = [column for column in KEYS if column not in ("partition", "target")]
"""What settings of a row share whose partitions are its columns."""
_ALIKE = "iid"


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
        tables=_over_partitions(data.table) if varies(data.table, "partition") else {},
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


def _over_partitions(table: pd.DataFrame) -> dict[str, PageTable]:
    """A table of the model evaluated, and one of the workers' own, where they were scored."""
    captions = {
        "final": "Accuracy in the end, on the test set, by which examples workers have for "
        "themselves: the median over seeds, and its 95 % interval.",
        "final_own": "The same of the models that the workers have themselves, each on its part "
        "of the test set: the median over seeds.",
    }
    scored = {score: table.loc[table[f"{score}_score"].notna()] for score in captions}
    return {
        f"{score}_over_partitions": _by_partition(rows, score, said_of(table, captions[score]))
        for score, rows in scored.items()
        if len(rows)
    }


def _by_partition(table: pd.DataFrame, score: str, caption: str) -> PageTable:
    """A row for settings that differ in the partition and the target alone, the best first; where
    some of these have one partition, a row for those of each target.
    """
    named = table.assign(partition=table.partition.fillna(_ALIKE))
    is_ambiguous = bool(named.duplicated([*_ROW, "partition"]).any())
    shared = [*_ROW, "target"] if is_ambiguous else _ROW
    rows = [row for _, row in named.groupby(shared, dropna=False, sort=False)]
    rows.sort(key=lambda row: -float((signs(row) * row.final_score).mean()))
    found = [{one["partition"]: one for one in row.to_dict("records")} for row in rows]
    alike = pd.concat([row.head(1) for row in rows], ignore_index=True)
    alike = alike.assign(partition=None, target=alike.target if is_ambiguous else None)
    cells, numbers = leading(alike), {}
    for name in sorted(set(named.partition), key=_mildness):
        cells[name] = [_ends(of.get(name), score) for of in found]
        numbers[name] = [of.get(name, {}).get(f"{score}_score", math.nan) for of in found]
    numbers = pd.concat([alike[shared], pd.DataFrame(numbers)], axis=1)
    return PageTable(caption=caption, cells=cells, numbers=numbers)


def _mildness(partition: str) -> tuple[int, float, str]:
    """Examples shared out alike first, then by Dirichlet's alpha from the largest, then others."""
    if partition == _ALIKE:
        return 0, 0.0, ""
    alpha = re.search(r"alpha=([\d.e+-]+)", partition)
    return (1, -float(alpha[1]), partition) if alpha else (2, 0.0, partition)


def _ends(setting: Mapping[Any, Any] | None, score: str) -> str:
    """Such as "0.832 (0.830 to 0.833)", "0.832", or "-" where nothing was run."""
    if setting is None:
        return "-"
    text = f"{setting[f'{score}_score']:.3f}"
    low, high = setting.get(f"{score}_low", math.nan), setting.get(f"{score}_high", math.nan)
    return text if math.isnan(low) else f"{text} ({low:.3f} to {high:.3f})"


def _figure(runs: pd.DataFrame) -> Figure:
    """A panel a partition: a row a worker, a column a class, dark where it has many of its own."""
    panels = []
    for index, shares in runs.shares.items():
        height_in = min(max(0.08 * len(shares["counts"]), 0.6), 1.6)
        title = describe(runs.loc[[index]], _OF)
        draw = partial(_draw, shares=shares)
        panels.append(Panel(title=title, draw=draw, height_in=height_in))
    return column([*panels, Panel(title="", draw=_draw_scale, height_in=0.1)])


def _draw(axes: Axes, *, shares: Mapping[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = np.array(shares["counts"])
    parts = 100 * counts / counts.sum(1, keepdims=True)
    axes.imshow(parts, aspect="auto", cmap=_COLORS, vmin=0, vmax=100, origin="lower")
    axes.set(xlabel=shares["of"], ylabel="worker")
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _draw_scale(axes: Axes) -> None:
    """Which colour is how much."""
    axes.imshow([range(101)], aspect="auto", cmap=_COLORS, vmin=0, vmax=100)
    axes.set(xlabel="% of a worker's examples", yticks=[])
    axes.grid(visible=False)
