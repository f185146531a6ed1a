"""The pictures of the map: regions of the first, how far before all-reduce, and known clusters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.atlas import LAMBDAS, RHOS, Panel
from experiments.advise.map.job import COMPUTE_MS
from experiments.advise.map.points import Point, points
from experiments.advise.map.standing import baseline_place
from experiments.advise.map.trainings import trained_workers
from experiments.advise.surface_plot import Regions, draw_regions, label_regions, swatch
from experiments.advise.tuning.trials import JUDGED_AT
from experiments.report.figures import column
from experiments.report.figures.names import SMALL
from host.words import counted, listed

if TYPE_CHECKING:  # imported where it draws: it takes more than a second
    from matplotlib.axes import Axes
    from matplotlib.contour import ContourSet
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect

_PANEL_IN = 1.3
_EDGE = 0.07
_WORD = np.array([[0.3], [0.2]])
"""Parts of a frame: how near to it no number of a line stands, and the room of a word."""

_LABEL_SHARE = 0.06
"""The least part of a panel in which a name has room."""

_LEADS = (1.5, 2, 4, 8, 16, 32)
_NOTE = (
    "rho: an ideal all-reduce / compute. lambda: delay / compute. Simulated, {seeds}. "
    "Numbers on lines: how many times as soon as all-reduce. Circles: all-reduce is first or ties."
)
_CROSSES = " Crosses: nobody reaches the target."


def map_figure(shown: Sequence[Panel]) -> Figure:
    """All panels of a task at the target by which settings were chosen: those of several numbers
    of workers have a row each, by loss.
    """
    own = shown[0].trained
    goal = own.goal(JUDGED_AT)
    order = sorted(shown, key=lambda p: (p.trained.workers, p.loss_pct))
    cells = [(p, p.grids[p.trained.goal(JUDGED_AT)], _title(p)) for p in order]
    losses = sorted({panel.loss_pct for panel in shown})
    is_grid = len(shown) > len(losses)
    return _figure(
        cells,
        f"{own.task}: first to {own.goals[goal].points:g} point below tuned all-reduce's end",
        _note(shown, [at for _, at, _ in cells]) + " Letters: clusters.",
        with_points=True,
        across=len(losses) if is_grid else None,
    )


def targets_figure(shown: Sequence[Panel], workers: int) -> Figure:
    """The panels of so many workers without loss, at all targets: a row for each task."""
    own = [p for p in shown if p.trained.workers == workers and not p.loss_pct]
    cells = [
        (panel, at, f"{panel.trained.task}: first to {goal}")
        for panel in own
        for at, goal in zip(panel.grids, panel.trained.goals, strict=True)
    ]
    title = f"{counted(workers, 'worker')}, no loss: targets so many points below tuned all-reduce"
    return _figure(cells, title, _note(own, [at for _, at, _ in cells]), with_points=False)


def _note(shown: Sequence[Panel], grids: Sequence[Grid]) -> str:
    """What marks mean, of crosses where a panel has some."""
    numbers = sorted({len(panel.trained.seeds) for panel in shown})
    said = _NOTE.format(seeds=f"{listed([str(number) for number in numbers])} seeds")
    crossed = any(0 < np.isinf(at.best_s).sum() < at.best_s.size for at in grids)
    return said + _CROSSES * crossed


def _title(panel: Panel) -> str:
    loss = f"{panel.loss_pct:g} % loss" if panel.loss_pct else "no loss"
    return f"{counted(panel.trained.workers, 'worker')}, {loss}"


def _figure(
    cells: Sequence[tuple[Panel, Grid, str]],
    title: str,
    note: str,
    *,
    with_points: bool,
    across: int | None = None,
) -> Figure:
    """The panels in their order; regions too small for their names are in the key."""
    panels, firsts = [], set[str]()
    for panel, at, said in cells:
        regions, has_points = Regions(at), with_points and not panel.loss_pct
        draw = partial(_draw, panel=panel, regions=regions, with_points=has_points)
        panels.append(column.Panel(title=said, draw=draw, height_in=_PANEL_IN))
        firsts.update(regions.leads)
    entries = [(algo, partial(swatch, algo)) for algo in sorted(firsts)]
    keys = [column.key(entries)] if entries else []
    return column.column([*panels, *keys], title, note, across)


def _draw(axes: Axes, *, panel: Panel, regions: Regions, with_points: bool) -> None:
    at, rates, delays = regions.grid, regions.rates, regions.delays
    axes.set(xscale="log", yscale="log", xlabel="rho", ylabel="lambda")
    axes.grid(visible=False)
    missed = [(at.rates_mbit[i], at.delays_ms[j]) for i, j in np.argwhere(np.isinf(at.best_s))]
    if len(missed) == at.best_s.size:
        _set_ticks(axes, panel)
        axes.text(0.5, 0.5, "nobody reaches it", transform=axes.transAxes, ha="center")
        return
    draw_regions(axes, regions)
    if missed:
        axes.scatter(*zip(*missed, strict=True), s=12, marker="x", color="black", lw=0.8)
    ratio = regions.times_as_soon_as(BASELINE)
    lines = axes.contour(
        rates, delays, ratio.T, levels=_LEADS, colors="0.2", linewidths=0.5, linestyles=":"
    )
    marked = [
        (at.rates_mbit[i], at.delays_ms[j])
        for i, j in np.ndindex(at.best_s.shape)
        if baseline_place(at.first(i, j), at.ties(i, j)) in ("wins", "ties")
    ]
    if marked:
        axes.scatter(*zip(*marked, strict=True), s=7, facecolor="white", edgecolor="black", lw=0.5)
    _set_ticks(axes, panel)
    places = _draw_points(axes, panel) if with_points else []
    label_regions(axes, regions, _LABEL_SHARE, places)
    _label_leads(axes, lines)


def _set_ticks(axes: Axes, panel: Panel) -> None:
    """The axes are rates and delays; rho and lambda are written beside them."""
    rhos = [0.01, 0.1, 1, 10, 100]
    lambdas = [1e-4, 1e-3, 1e-2, 0.1, 1]
    axes.minorticks_off()
    axes.set_xticks([panel.rate_mbit(rho) for rho in rhos], [f"{rho:g}" for rho in rhos])
    axes.set_yticks([x * COMPUTE_MS for x in lambdas], [f"{x:g}" for x in lambdas])
    axes.set_xlim(panel.rate_mbit(RHOS[0]), panel.rate_mbit(RHOS[-1]))
    axes.set_ylim(LAMBDAS[0] * COMPUTE_MS, LAMBDAS[-1] * COMPUTE_MS)


def _label_leads(axes: Axes, lines: ContourSet) -> None:
    """The number of each line where it is the farthest from the frame and from other words."""
    to_frame = axes.transData + axes.transAxes.inverted()
    words = [getattr(text, "xy", text.get_unitless_position()) for text in axes.texts]
    taken = [to_frame.transform(word) for word in words]
    chosen = []
    for path in lines.get_paths():
        vertices = np.asarray(path.vertices, float).reshape(-1, 2)
        places = to_frame.transform(vertices)
        inside = np.flatnonzero(((places > _EDGE) & (places < 1 - _EDGE)).all(axis=1))
        if not inside.size:
            continue
        apart = [np.hypot(*(places[inside] - word).T / _WORD) for word in taken]
        best = inside[int(np.min(apart, axis=0).argmax()) if apart else inside.size // 2]
        chosen.append((float(vertices[best, 0]), float(vertices[best, 1])))
        taken.append(places[best])
    if chosen:
        axes.clabel(lines, fmt="%g", fontsize=SMALL, manual=chosen)
        for number in lines.labelTexts:
            number.set(color="black", path_effects=_halo())  # hatches and borders are behind it


def _halo() -> list[AbstractPathEffect]:
    """A white edge around letters."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground="white")]


def _draw_points(axes: Axes, panel: Panel) -> list[tuple[float, float]]:
    """Those of the nearest numbers of workers; beyond the frame at its edge. Returns where."""
    places = []
    for place, point in enumerate(points()):
        if panel.trained.workers not in nearest(point):
            continue
        rho, lambda_ = point.job.rho, point.job.lambda_
        inside = (float(np.clip(rho, RHOS[0], RHOS[-1])), float(np.clip(lambda_, LAMBDAS[0], 1)))
        where = panel.rate_mbit(inside[0]), inside[1] * COMPUTE_MS
        places.append(where)
        axes.plot(*where, "o", ms=3, color="black", clip_on=False, zorder=5)
        axes.annotate(
            point.sign,
            where,
            xytext=(-2, 5 if place % 2 else -10),
            fontsize=SMALL,
            textcoords="offset points",
            weight="bold",
            path_effects=_halo(),
            zorder=6,
        )
    return places


def nearest(point: Point) -> list[int]:
    """The trained numbers of workers that are the nearest, by their ratio."""
    trained = trained_workers()
    apart = [abs(np.log(point.job.workers / workers)) for workers in trained]
    return [workers for workers, far in zip(trained, apart, strict=True) if far < min(apart) + 1e-9]
