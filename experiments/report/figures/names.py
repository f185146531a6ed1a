"""Names beside what they name: none lies on another, and equal heights are told apart by the
alphabet, so that a figure is the same each time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL = 6.2
"""Points of the letters of names and ticks."""

LINE_IN = 1.3 * SMALL / 72
NAME_WIDTH = 19
"""Characters of a line of a name."""


class End(NamedTuple):
    """Where a line ends, in data coordinates, and what it is called."""

    x: float
    y: float
    name: str
    color: Any


def narrow(name: str, width: int = NAME_WIDTH) -> str:
    """A name in lines of at most `width` characters, ended after a blank; after "_", "," or "=" as
    well within a word that is longer than a line.
    """
    lines, parts = [""], list[str]()
    for word in re.findall(r"[^ ]* ?", name):
        fits = len(word.rstrip()) <= width
        parts += [word] if fits else re.findall(r"[^ _,=]*[ _,=]?", word)
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def num_lines(names: Sequence[str], width: int = NAME_WIDTH) -> int:
    """That all names need, one below the other."""
    return sum(narrow(name, width).count("\n") + 1 for name in names)


def height_in(names: Sequence[str], least: float) -> float:
    """Of a frame beside which all names have room."""
    return max(least, (num_lines(names) + 0.5) * LINE_IN)


def name_ends(axes: Axes, ends: Sequence[End], frame_in: float) -> None:
    """Write each name right of the frame, as near to the height of its line's end as the others
    leave room, with a thin line from one to the other. The frame is `frame_in` high.
    """
    to_frame = axes.transData + axes.transAxes.inverted()
    heights = [min(max(float(to_frame.transform((e.x, e.y))[1]), 0.0), 1.0) for e in ends]
    said = [narrow(end.name) for end in ends]
    sizes = [(text.count("\n") + 1) * LINE_IN / frame_in for text in said]
    for k, at in spread(heights, [end.name for end in ends], sizes):
        axes.annotate(
            said[k],
            xy=(ends[k].x, ends[k].y),
            xytext=(1.04, at),
            textcoords="axes fraction",
            color=ends[k].color,
            va="center",
            linespacing=1.05,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": ends[k].color,
                "linewidth": 0.4,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def spread(
    heights: Sequence[float], names: Sequence[str], sizes: Sequence[float]
) -> list[tuple[int, float]]:
    """Places of names from low to high, each near its height: the position of each, and where its
    middle goes. `sizes` are of the names, all as parts of the frame.
    """
    order = sorted(range(len(heights)), key=lambda k: (heights[k], names[k]))
    placed: list[float] = []
    end = -float("inf")
    for k in order:
        placed.append(max(heights[k], end + sizes[k] / 2))
        end = placed[-1] + sizes[k] / 2
    top = max(1.0, sum(sizes) / 2 + 0.5)
    for at in reversed(range(len(order))):
        half = sizes[order[at]] / 2
        placed[at] = min(placed[at], top - half)
        top = placed[at] - half
    return list(zip(order, placed, strict=True))


@cache
def text_width_in(text: str, size: float = SMALL) -> float:
    """Of one line."""
    import matplotlib
    from matplotlib.textpath import TextPath

    with matplotlib.rc_context({"text.parse_math": False}):
        path = TextPath((0, 0), text, size=size)
    return float(path.get_extents().x1) / 72 if text.strip() else 0.0


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers between two positive ones, at most so many, for a logarithmic axis."""
    import numpy as np

    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**k for k in range(first, last + 1) for s in steps]
        inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside or [_roundest(low, high)]
    every = -(-len(inside) // most)
    return inside[::every]


def _roundest(low: float, high: float) -> float:
    """The number of the fewest digits between two that are near each other."""
    for step in (10.0**k for k in range(math.floor(math.log10(high)), -7, -1)):
        tick = round(math.ceil(low / step) * step, 6)
        if low <= tick <= high:
            return tick
    return low


def set_log_axis(axis: Any, low: float, high: float, most: int = 7) -> None:
    """Such ticks, with their numbers, on a logarithmic axis from `low` to `high`."""
    from matplotlib.ticker import NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    ticks = log_ticks(low, high, most)
    axis.set_ticks(ticks, [_said(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def _said(tick: float) -> str:
    return f"{tick:,.0f}" if 1000 <= tick < 1e7 else f"{tick:g}"
