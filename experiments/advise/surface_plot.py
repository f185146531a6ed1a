"""The picture of a grid: who is first where, the lines where that changes, the times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.advise.grid import Array, Grid
from experiments.report.figures import column
from experiments.report.figures.names import SMALL, set_log_axis
from experiments.report.figures.styles import area_styles

if TYPE_CHECKING:  # imported where it draws: it takes more than a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_POINTS = 361
_EQUAL = 1e-9
"""Logarithms that differ by less are of equal times."""

_APART = (85, 65)
"""So many points of the mesh a name stays away from a place that is avoided."""

_LETTER, _LINE = 5, 36
"""So many points of the mesh half of a letter of a name is wide, and a name with its box high."""

_LABEL_SHARE = 0.01
"""The least part of the picture that is labelled inside."""

_PANEL_IN = 2.4


class Regions:
    """Who is first where between the points of a grid: on a mesh of `rates` `[r]` and `delays`
    `[d]`, fine enough for smooth lines.

    `best` are the logarithms of the least times, `[r, d]`, and `leads` by how much, in logarithms,
    each algorithm is before all others, of those that are so anywhere; NaN where none reaches the
    target.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.rates, self.delays = (
            np.geomspace(axis[0], axis[-1], _POINTS) for axis in (grid.rates_mbit, grid.delays_ms)
        )
        log_times = grid.log_times(self.rates, self.delays)
        logs = np.stack(list(log_times.values()))
        self.best: Array = logs.min(0)
        self.is_reached = grid.is_reached(self.rates, self.delays)
        self.leads = _leads(list(log_times), logs, self.is_reached)

    def times_as_soon_as(self, algo: str) -> Array:
        """How many times as soon as this algorithm the first one is, `[r, d]`; NaN where none
        reaches the target.
        """
        own = self.grid.log_times(self.rates, self.delays, [algo])[algo]
        return np.where(self.is_reached, np.exp(own - self.best), np.nan)


def _leads(names: Sequence[str], logs: Array, is_reached: NDArray[np.bool_]) -> dict[str, Array]:
    """Of logarithms `[algos, r, d]`. Of several that are equal, as where one has not left its
    warm-up, the first leads, as in `Grid.first`.
    """
    nobody = np.full_like(logs[:1], np.inf)
    before = np.concatenate([nobody, np.minimum.accumulate(logs)])
    after = np.concatenate([np.minimum.accumulate(logs[::-1])[::-1], nobody])
    leads = {}
    for place, (algo, own) in enumerate(zip(names, logs, strict=True)):
        others = np.minimum(before[place], after[place + 1] + _EQUAL)
        lead = others - own if len(names) > 1 else np.ones_like(own)
        lead = np.where(is_reached, lead, np.nan)
        if (lead > 0).any():
            leads[algo] = lead
    return leads


def surface_plot(grid: Grid, title: str) -> Figure:
    """Regions of the algorithms that are first, in their colours, by name; the times at points."""
    regions = Regions(grid)
    panel = column.Panel(title="", draw=partial(_draw, regions=regions), height_in=_PANEL_IN)
    firsts = column.key([(algo, partial(swatch, algo)) for algo in regions.leads])
    return column.column([panel, firsts], title, _caption(grid))


def _draw(axes: Axes, *, regions: Regions) -> None:
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=False)
    draw_regions(axes, regions)
    label_regions(axes, regions)
    _draw_times(axes, regions.grid)
    axes.set(xlabel="rate of every link (Mbit/s)", ylabel="delay from worker to worker (ms)")
    for axis in (axes.xaxis, axes.yaxis):
        set_log_axis(axis, *axis.get_view_interval())


def swatch(algo: str, x: float, y: float, width: float, height: float) -> Patch:
    """The colour and hatch of an algorithm's regions, for a key."""
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = area_styles([algo])[algo] | {"linewidth": 0.4}
    return Rectangle((x, y), width, height, **style)


def _caption(grid: Grid) -> str:
    lines = ["Numbers: seconds to the accuracy; in brackets where the first ties with another."]
    if grid.simulated_at:
        lines.append(f"Interpolated between simulated points: {', '.join(grid.simulated_at)}.")
    return " ".join(lines)


def _region_styles(algos: list[str]) -> dict[str, dict[str, Any]]:
    """A colour and a hatch for each, the same in every picture."""
    areas = area_styles(algos)
    return {
        algo: {"colors": [areas[algo]["facecolor"]], "hatches": [areas[algo]["hatch"]]}
        for algo in algos
    }


def draw_regions(axes: Axes, regions: Regions) -> None:
    """Fill where an algorithm is before all others; its border is where another is as fast. Where
    none reaches the target, nothing is filled.
    """
    at = regions.rates, regions.delays
    styles = _region_styles(list(regions.grid.medians_s))
    for algo, lead in regions.leads.items():
        axes.contourf(*at, lead.T, levels=[0, np.inf], **styles[algo])
        if (lead < 0).any():
            axes.contour(*at, lead.T, levels=[0], colors="black", linewidths=0.9)


def label_regions(
    axes: Axes,
    regions: Regions,
    least: float = _LABEL_SHARE,
    avoided: Sequence[tuple[float, float]] = (),
) -> None:
    """Write the name of each algorithm where it is first, in parts of at least that share, away
    from places that are `avoided`: rates and delays. Where a name would lie on another one it is
    left to the key.
    """
    is_free, names = _away_from(avoided, regions.rates, regions.delays), list[_Name]()
    for algo, lead in regions.leads.items():
        _label(axes, regions, lead > 0, is_free, algo, least, names)


_Name = tuple[int, int, str]
"""A name, and where on the mesh it stands."""


def _beside(names: Sequence[_Name], algo: str) -> Array:
    """1 on the mesh, and 0 where this name would lie on one of the others."""
    is_clear = np.ones((_POINTS, _POINTS))
    for x, y, other in names:
        width = _LETTER * (len(algo) + len(other) + 2)
        is_clear[max(x - width, 0) : x + width, max(y - _LINE, 0) : y + _LINE] = 0
    return is_clear


def _away_from(places: Sequence[tuple[float, float]], rates: Array, delays: Array) -> Array:
    """1 on the mesh, and little where a name would lie on what is written at a place."""
    is_free = np.ones((len(rates), len(delays)))
    for rate, delay in places:
        x, y = np.abs(np.log(rates / rate)).argmin(), np.abs(np.log(delays / delay)).argmin()
        near = (
            slice(max(x - _APART[0], 0), x + _APART[0]),
            slice(max(y - _APART[1], 0), y + _APART[1]),
        )
        is_free[near] = 0.01
    return is_free


def _label(
    axes: Axes,
    regions: Regions,
    is_first: NDArray[np.bool_],
    is_free: Array,
    algo: str,
    least: float,
    names: list[_Name],
) -> None:
    """The name, in each part of the region where it fits: far from borders, between the times, and
    on none of `names`, to which it is added.
    """
    from scipy import ndimage

    rates, delays = regions.rates, regions.delays
    is_between = np.isin(np.arange(_POINTS), _middles(regions.grid.delays_ms, delays))
    parts: Any = ndimage.label(is_first)
    for part in range(1, parts[1] + 1):
        inside = parts[0] == part
        if inside.mean() < least:
            continue
        depth: Any = ndimage.distance_transform_edt(np.pad(inside, 1))
        depth = depth[1:-1, 1:-1] * np.where(is_between, 1, 0.1) * is_free * _beside(names, algo)
        if not depth.any():
            continue
        x, y = map(int, np.unravel_index(int(depth.argmax()), depth.shape))
        names.append((x, y, algo))
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.4"}
        where = float(rates[x]), float(delays[y])
        name = axes.text(*where, algo, fontsize=SMALL, bbox=box)
        name.set(ha="center", va="center", weight="bold", gid=column.INSIDE)


def _middles(known: Array, fine: Array) -> NDArray[np.intp]:
    """The indices in `fine` half-way between neighbours of `known`, on a logarithmic axis."""
    return np.searchsorted(fine, np.sqrt(known[1:] * known[:-1]))


def _draw_times(axes: Axes, grid: Grid) -> None:
    """The best time at every point, inside the frame."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white", alpha=0.8)]
    for i, j in np.ndindex(grid.best_s.shape):
        sides = [_side(k, len(axis)) for k, axis in ((i, grid.rates_mbit), (j, grid.delays_ms))]
        axes.annotate(
            _time(grid, i, j),
            (grid.rates_mbit[i], grid.delays_ms[j]),
            xytext=(3 * sides[0], 3 * sides[1]),
            textcoords="offset points",
            ha=("right", "center", "left")[sides[0] + 1],
            va=("top", "center", "bottom")[sides[1] + 1],
            fontsize=SMALL,
            path_effects=halo,
        )


def _side(index: int, length: int) -> int:
    """Which way is inwards: 1 at an axis's begin, -1 at its end."""
    return int(index == 0) - int(index == length - 1)


def _time(grid: Grid, rate: int, delay: int) -> str:
    """Such as "41", "4.1", or "(4.1)" for a tie."""
    time_s = grid.best_s[rate, delay]
    if np.isinf(time_s):
        return "missed"
    text = f"{time_s:.2g}" if time_s < 10 else f"{time_s:.0f}"
    return f"({text})" if grid.ties(rate, delay) else text
