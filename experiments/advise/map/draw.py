"""The pictures of the map: regions of the first, how far before all-reduce, and known clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.atlas import LAMBDAS, RHOS, Panel
from experiments.advise.map.job import COMPUTE_MS
from experiments.advise.map.points import Point, points
from experiments.advise.map.standing import baseline_place
from experiments.advise.map.trainings import trained_workers
from experiments.advise.surface_plot import draw_regions, label_regions, mesh
from experiments.advise.tuning.trials import JUDGED_AT
from host.words import counted, listed

if TYPE_CHECKING:  # imported where it draws: it takes more than a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_WIDTH_IN = 7.2
"""Of a journal's page."""

_PANEL_IN = 2.1
_STYLE: Any = {
    "font.size": 7,
    "axes.titlesize": 7,
    "hatch.linewidth": 0.3,
    "hatch.color": "0.6",
    "axes.linewidth": 0.6,
}
_LABEL_SHARE = 0.06
"""The least part of a panel in which a name has room."""

_LEADS = (1.5, 2, 4, 8, 16, 32)
_NOTE = (
    "rho: an ideal all-reduce / compute. lambda: delay / compute. Simulated, {seeds}.\n"
    "Numbers on lines: how many times as soon as all-reduce. Circles: all-reduce is first or ties."
    "\nCrosses: nobody reaches the target."
)


def map_figure(shown: Sequence[Panel]) -> Figure:
    """All panels of a task at the target by which settings were chosen: columns by workers, rows by
    loss; one row of a task that was trained with one number of workers.
    """
    own = shown[0].trained
    goal = own.goal(JUDGED_AT)
    workers = sorted({panel.trained.workers for panel in shown})
    losses = sorted({panel.loss_pct for panel in shown})
    cells = {}
    for p in shown:
        row, column = losses.index(p.loss_pct), workers.index(p.trained.workers)
        place = (row, column) if workers[1:] else (0, row)
        cells[place] = (p, p.grids[p.trained.goal(JUDGED_AT)], _title(p))
    return _figure(
        cells,
        f"{own.task}: first to {own.goals[goal].points:g} point below tuned all-reduce's end",
        _note(shown) + " Letters: clusters.",
        with_points=True,
    )


def targets_figure(shown: Sequence[Panel], workers: int) -> Figure:
    """The panels of so many workers without loss, at all targets: a row for each task."""
    own = [p for p in shown if p.trained.workers == workers and not p.loss_pct]
    cells = {
        (row, column): (
            panel,
            panel.grids[column],
            f"{panel.trained.task}\nfirst to {goal}",
        )
        for row, panel in enumerate(own)
        for column, goal in enumerate(panel.trained.goals)
    }
    title = f"{counted(workers, 'worker')}, no loss: targets so many points below tuned all-reduce"
    return _figure(cells, title, _note(own), with_points=False)


def _note(shown: Sequence[Panel]) -> str:
    numbers = sorted({len(panel.trained.seeds) for panel in shown})
    return _NOTE.format(seeds=f"{listed([str(number) for number in numbers])} seeds")


def _title(panel: Panel) -> str:
    loss = f"{panel.loss_pct:g} % loss" if panel.loss_pct else "no loss"
    return f"{counted(panel.trained.workers, 'worker')}, {loss}"


def _figure(
    cells: Mapping[tuple[int, int], tuple[Panel, Grid, str]],
    title: str,
    note: str,
    *,
    with_points: bool,
) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    num_rows, num_columns = (1 + max(place[k] for place in cells) for k in (0, 1))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * num_rows + 0.9), layout="constrained")
        entries: dict[str, Patch] = {}
        for (row, column), (panel, at, said) in sorted(cells.items(), key=itemgetter(0)):
            axes = figure.add_subplot(num_rows, num_columns, 1 + row * num_columns + column)
            entries |= _draw(axes, panel, at)
            if with_points and not panel.loss_pct:
                _draw_points(axes, panel)
            axes.set_title(said)
            axes.set(xlabel="rho", ylabel="lambda")
            axes.label_outer()
        figure.suptitle(title, fontsize=8)
        figure.legend(
            handles=[entries[algo] for algo in sorted(entries)],
            loc="outside lower center",
            ncols=min(len(entries), 5),
            frameon=False,
            title=note,
            title_fontsize=6.5,
        )
        figure.draw_without_rendering()
    return figure


def _draw(axes: Axes, panel: Panel, at: Grid) -> dict[str, Patch]:
    """One panel; returns the entries of a legend."""
    axes.set(xscale="log", yscale="log")
    missed = [(at.rates_mbit[i], at.delays_ms[j]) for i, j in np.argwhere(np.isinf(at.best_s))]
    if len(missed) == at.best_s.size:
        _set_ticks(axes, panel)
        axes.text(0.5, 0.5, "nobody reaches it", transform=axes.transAxes, ha="center")
        return {}
    entries = draw_regions(axes, at, line_width=0.9)
    if missed:
        axes.scatter(*zip(*missed, strict=True), s=12, marker="x", color="black", lw=0.8)
    rates, delays = mesh(at)
    log_times = at.log_times(rates, delays)
    ratio = np.exp(log_times[BASELINE] - np.min(list(log_times.values()), axis=0))
    lines = axes.contour(
        rates, delays, ratio.T, levels=_LEADS, colors="0.2", linewidths=0.5, linestyles=":"
    )
    axes.clabel(lines, fmt="%g", fontsize=6)
    marked = [
        (at.rates_mbit[i], at.delays_ms[j])
        for i, j in np.ndindex(at.best_s.shape)
        if baseline_place(at.first(i, j), at.ties(i, j)) in ("wins", "ties")
    ]
    if marked:
        axes.scatter(*zip(*marked, strict=True), s=7, facecolor="white", edgecolor="black", lw=0.5)
    _set_ticks(axes, panel)
    label_regions(axes, at, 4.5, _LABEL_SHARE)
    return entries


def _set_ticks(axes: Axes, panel: Panel) -> None:
    """The axes are rates and delays; rho and lambda are written beside them."""
    rhos = [0.01, 0.1, 1, 10, 100]
    lambdas = [1e-4, 1e-3, 1e-2, 0.1, 1]
    axes.minorticks_off()
    axes.set_xticks([panel.rate_mbit(rho) for rho in rhos], [f"{rho:g}" for rho in rhos])
    axes.set_yticks([x * COMPUTE_MS for x in lambdas], [f"{x:g}" for x in lambdas])
    axes.set_xlim(panel.rate_mbit(RHOS[0]), panel.rate_mbit(RHOS[-1]))
    axes.set_ylim(LAMBDAS[0] * COMPUTE_MS, LAMBDAS[-1] * COMPUTE_MS)


def _draw_points(axes: Axes, panel: Panel) -> None:
    """Those of the nearest numbers of workers; beyond the frame at its edge."""
    from matplotlib.patheffects import withStroke

    for place, point in enumerate(points()):
        if panel.trained.workers not in nearest(point):
            continue
        rho, lambda_ = point.job.rho, point.job.lambda_
        inside = (float(np.clip(rho, RHOS[0], RHOS[-1])), float(np.clip(lambda_, LAMBDAS[0], 1)))
        where = panel.rate_mbit(inside[0]), inside[1] * COMPUTE_MS
        axes.plot(*where, "o", ms=3, color="black", clip_on=False, zorder=5)
        axes.annotate(
            point.sign,
            where,
            xytext=(-2, 5 if place % 2 else -10),
            fontsize=6,
            textcoords="offset points",
            weight="bold",
            path_effects=[withStroke(linewidth=2, foreground="white")],
            zorder=6,
        )


def nearest(point: Point) -> list[int]:
    """The trained numbers of workers that are the nearest, by their ratio."""
    trained = trained_workers()
    apart = [abs(np.log(point.job.workers / workers)) for workers in trained]
    return [workers for workers, far in zip(trained, apart, strict=True) if far < min(apart) + 1e-9]
