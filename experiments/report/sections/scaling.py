"""Speed over the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.figures.panels import panels
from experiments.report.figures.plots import add_legend
from experiments.report.figures.styles import Styles
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE
from experiments.report.section import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Scaling"

_REST = [column for column in COMPARABLE if column != "workers"]


def section(data: ReportData) -> Section:
    """How the speed of all workers together grows with their number."""
    table = data.table.query("not shared_gpu")
    if not list(_groups(table)):
        return Section(finding="No setting was run with several numbers of workers: no scaling.")
    drawn = data.drawn(_REST)
    groups = list(_groups(drawn.table.query("not shared_gpu")))
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(table)),
        notes=[drawn.left_out] if drawn.left_out else [],
        drawings={"scaling": partial(_figure, groups, data)} if groups else {},
    )


def _figure(groups: Sequence[pd.DataFrame], data: ReportData) -> Figure:
    figure = panels(groups, lambda axes, group: _draw(axes, group, data.styles), height_in=3.4)
    add_legend(figure, list(data.styles))
    return figure


def _groups(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows that differ in workers and algorithm alone, with the speed of all workers together."""
    table = table.dropna(subset=["workers", "steps_per_s"])
    table = table.assign(speed=table.workers.astype(float) * table.steps_per_s)
    for _, group in table.groupby(_REST, dropna=False):
        if group.workers.nunique() > 1:
            yield group


def _kept(group: pd.DataFrame) -> pd.Series:
    """For each algorithm, the part of a worker's speed that is left with the most workers."""
    kept = {}
    for label, rows in group.groupby("label"):
        if rows.workers.nunique() > 1:
            rows = rows.sort_values("workers")
            kept[label] = rows.steps_per_s.iloc[-1] / rows.steps_per_s.iloc[0]
    return pd.Series(kept, dtype=float)


def _finding(mark: str, table: pd.DataFrame) -> str:
    kept = pd.concat([_kept(group) for group in _groups(table)] or [pd.Series(dtype=float)])
    if kept.empty:
        return sentence(["no setting was run with several numbers of workers"], mark)
    medians = kept.groupby(level=0).median()
    best, worst = medians.idxmax(), medians.idxmin()
    parts = [
        f"from the fewest to the most workers, {best} keeps {100 * medians[best]:.0f} % of a "
        "worker's speed" + (", in the median situation" if len(kept) > len(medians) else "")
    ]
    if best != worst:
        parts.append(f"{worst} keeps {100 * medians[worst]:.0f} %")
    return sentence(parts, mark)


def _draw(axes: Axes, group: pd.DataFrame, styles: Styles) -> None:
    """Both axes logarithmic; proportional growth is the slope of the dotted line."""
    from matplotlib.ticker import LogLocator, NullLocator

    counts = sorted(group.workers.unique())
    fastest = group[group.workers == counts[0]].speed.max()
    for label, rows in group.groupby("label"):
        rows = rows.sort_values("workers")
        axes.plot(rows.workers.astype(float), rows.speed, label=label, **styles[str(label)])
    ideal = [fastest * count / counts[0] for count in counts]
    axes.plot(counts, ideal, color="0.3", linestyle=":", linewidth=1, label="proportional")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="steps/s of all workers")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
