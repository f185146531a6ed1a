"""Figures of one column of a journal: 85 mm wide, panel below panel, names beside what they name.
More than `MOST_BELOW` panels stand in pairs, over both columns: 180 mm. So do three or more that
are to stand side by side.

All is drawn at the size at which it is printed, with letters of 6.2 to 7 points. Each panel's frame
has the height that its names need. Around the frames goes as much room as what stands there takes,
measured by the renderer; then the layout is frozen.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from experiments.report.figures.names import LINE_IN, SMALL, text_width_in

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure

WIDTH_IN = 85 / 25.4
TITLE_WIDTH = 44
"""Characters of a line of a title."""

MOST_BELOW = 6
_GUTTER_IN = 10 / 25.4
"""Between the two columns of a page."""

_NARROW_GUTTER_IN = 3 / 25.4
"""Between more columns."""

INSIDE = "inside"
"""The `gid` of a text that is moved into its frame where it would reach out at a side."""

_NOTE_WIDTH = 66
_NO_BREAK = "\N{NO-BREAK SPACE}"
_MEDIUM = 7.0
_PADS: dict[Literal["x", "y"], float] = {"x": 3.5, "y": 2.0}
"""Points between a frame and the numbers of its ticks: in the corner they keep apart."""

_MARGIN_IN = 0.04
_GAP_IN = 0.1
_TITLE_LINE_IN = 1.25 * _MEDIUM / 72
_BEFORE_IN = 2.0
"""Of a frame as long as its place is not known."""

_ROUNDS = 3
"""Of measuring: ticks may change with the width that is left for them."""

THEME: dict[str, Any] = {
    "font.size": SMALL,
    "axes.titlesize": _MEDIUM,
    "axes.labelsize": SMALL,
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.5,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "lines.markeredgewidth": 0.6,
    "patch.linewidth": 0.5,
    "hatch.linewidth": 0.3,
    "text.parse_math": False,  # a name may have dollar signs
}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is drawn below a `title` in a frame of `height_in`; a key has all the width."""

    title: str
    draw: Callable[[Axes], None]
    height_in: float
    is_key: bool = False


@dataclass(frozen=True)
class _Columns:
    """So many side by side: one has 85 mm, more share 180 mm."""

    number: int

    @property
    def gutter_in(self) -> float:
        return _NARROW_GUTTER_IN if self.number > 2 else _GUTTER_IN

    @property
    def page_in(self) -> float:
        return WIDTH_IN if self.number == 1 else 2 * WIDTH_IN + _GUTTER_IN

    @property
    def width_in(self) -> float:
        """Of each."""
        return (self.page_in - (self.number - 1) * self.gutter_in) / self.number

    @property
    def title_width(self) -> int:
        """Characters of a line of a panel's title."""
        return int(TITLE_WIDTH * self.width_in / WIDTH_IN)


def column(
    panels: Sequence[Panel], title: str = "", note: str = "", across: int | None = None
) -> Figure:
    """The panels in their order, a `title` of all above and a `note` below them. Where there are
    several columns, panels are read along the rows. `across`: how many stand in a row; None: one,
    or two where panels are many.
    """
    import matplotlib
    import seaborn

    theme: Any = seaborn.axes_style("whitegrid") | THEME
    with matplotlib.rc_context(theme):
        figure = _empty(len(panels))
        figure.subplots_adjust(**_begin(len(panels)))
        for axes, panel in zip(figure.axes, panels, strict=True):
            axes.set(xlabel="", ylabel="", title="")
            for axis, pad in _PADS.items():  # also when the theme is over
                axes.tick_params(axis, labelsize=SMALL, pad=pad, length=0)
            panel.draw(axes)
        many = sum(not panel.is_key for panel in panels) > MOST_BELOW
        _freeze(figure, panels, title, note, _Columns(across or (2 if many else 1)))
    return figure


def _empty(num_panels: int) -> Figure:
    """Of no window: no notebook shows it by itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, _BEFORE_IN * num_panels))
    figure.subplots(num_panels, 1)
    return figure


@cache
def _begin(num_panels: int) -> dict[str, float]:
    """Where frames are before they are measured for the first time, under the theme. It is the
    place of empty ones, and sought once.
    """
    figure = _empty(num_panels)
    figure.tight_layout()
    found = figure.subplotpars
    return {name: getattr(found, name) for name in ("left", "right", "bottom", "top", "hspace")}


def key(entries: Sequence[tuple[str, Callable[[float, float, float, float], Artist]]]) -> Panel:
    """A panel of swatches with their names, for what has no room to be named where it is drawn.

    Each entry makes its swatch of x, y, width and height, in inches.
    """
    width_in, swatch_in, pad_in = WIDTH_IN - 2 * _MARGIN_IN, 0.2, 0.05
    places, x, row = [], 0.0, 0
    for name, _ in entries:
        needed = swatch_in + pad_in + text_width_in(name)
        if x and x + needed > width_in:
            x, row = 0.0, row + 1
        places.append((x, row))
        x += needed + 2.5 * pad_in
    height_in = (row + 1) * 1.15 * LINE_IN

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set(xlim=(0, width_in), ylim=(height_in, 0), xticks=[], yticks=[])
        for (name, make), (left, line) in zip(entries, places, strict=True):
            middle = (line + 0.5) * 1.15 * LINE_IN
            axes.add_artist(make(left, middle - 0.35 * LINE_IN, swatch_in, 0.7 * LINE_IN))
            axes.text(left + swatch_in + pad_in, middle, name, va="center")

    return Panel(title="", draw=draw, height_in=height_in, is_key=True)


def _freeze(
    figure: Figure, panels: Sequence[Panel], title: str, note: str, columns: _Columns
) -> None:
    """Gives every frame its place, for good."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.set_layout_engine("none")
    page = round(columns.page_in / WIDTH_IN)
    title, note = _filled(title, page * TITLE_WIDTH), textwrap.fill(note, page * _NOTE_WIDTH)
    titles = [_filled(panel.title, columns.title_width) for panel in panels]
    above_in = [_height_in(said, _TITLE_LINE_IN) for said in titles]
    head_in = _height_in(title, _TITLE_LINE_IN) + (0.06 if title else 0.0)
    foot_in = _height_in(note, LINE_IN) + (0.06 if note else 0.0)
    rows = _rows(panels, columns.number)
    keys = [axes for axes, panel in zip(figure.axes, panels, strict=True) if panel.is_key]
    room, left_in, width_in = [], 0.0, WIDTH_IN
    figure.set_figwidth(columns.page_in)
    for _ in range(_ROUNDS):
        room = [_overhang_in(axes) for axes in figure.axes]
        ends_in = head_in, foot_in
        left_in, width_in = _place(figure, panels, rows, above_in, room, ends_in, columns)
        for axes in figure.axes:
            _move_inside(axes)
    for axes in keys:
        _, bottom, _, height = axes.get_position().bounds
        left, width = _MARGIN_IN, WIDTH_IN - 2 * _MARGIN_IN
        axes.set_position(
            (left / figure.get_figwidth(), bottom, width / figure.get_figwidth(), height)
        )
    begin = (_MARGIN_IN - left_in) / width_in  # at the column's edge
    for axes, said, sides, panel in zip(figure.axes, titles, room, panels, strict=True):
        axes.set_title(said, loc="left", x=begin, y=1 + sides[2] / panel.height_in)
    if title:
        top = 1 - _MARGIN_IN / figure.get_figheight()
        figure.suptitle(title, fontsize=_MEDIUM, y=top, va="top", weight="bold")
    if note:
        bottom = _MARGIN_IN / figure.get_figheight()
        left = _MARGIN_IN / figure.get_figwidth()
        figure.text(left, bottom, note, fontsize=SMALL, va="bottom", color="0.3")


def _rows(panels: Sequence[Panel], columns: int) -> list[list[int]]:
    """The places of the panels of each row; a key has one of its own."""
    rows: list[list[int]] = []
    for place, panel in enumerate(panels):
        goes_on = rows and len(rows[-1]) < columns and not panels[rows[-1][0]].is_key
        if goes_on and not panel.is_key:
            rows[-1].append(place)
        else:
            rows.append([place])
    return rows


def _place(
    figure: Figure,
    panels: Sequence[Panel],
    rows: Sequence[Sequence[int]],
    above_in: Sequence[float],
    room: Sequence[tuple[float, float, float, float]],
    ends_in: tuple[float, float],
    columns: _Columns,
) -> tuple[float, float]:
    """Below a head, above a foot; returns where frames begin in their column, and their width."""
    # A key gets all the width afterwards.
    framed = [own for own, panel in zip(room, panels, strict=True) if not panel.is_key]
    left_in = _MARGIN_IN + max((sides[0] for sides in framed), default=0.0)
    right_in = _MARGIN_IN + max((sides[1] for sides in framed), default=0.0)
    width_in = max(columns.width_in - left_in - right_in, 0.3)
    tops = [own[2] + title for own, title in zip(room, above_in, strict=True)]
    below = [panel.height_in + own[3] for own, panel in zip(room, panels, strict=True)]
    # Frames of a row begin at one height.
    row_tops = [max(tops[place] for place in row) for row in rows]
    rows_in = [top + max(below[p] for p in row) for top, row in zip(row_tops, rows, strict=True)]
    total_in = sum(ends_in) + 2 * _MARGIN_IN + _GAP_IN * (len(rows) - 1) + sum(rows_in)
    figure.set_figheight(total_in)
    y_in = total_in - _MARGIN_IN - ends_in[0]
    for row, top_in, row_in in zip(rows, row_tops, rows_in, strict=True):
        for number, place in enumerate(row):
            bottom_in = y_in - top_in - panels[place].height_in
            x_in = number * (columns.width_in + columns.gutter_in) + left_in
            across, high = figure.get_figwidth(), panels[place].height_in / total_in
            figure.axes[place].set_position(
                (x_in / across, bottom_in / total_in, width_in / across, high)
            )
        y_in -= row_in + _GAP_IN
    return left_in, width_in


def _move_inside(axes: Axes) -> None:
    """All texts of the gid `INSIDE`."""
    figure: Any = axes.figure
    frame = axes.get_window_extent()
    for text in axes.texts:
        if text.get_gid() != INSIDE:
            continue
        text.draw(figure.canvas.get_renderer())  # its box gets its place
        box = text.get_bbox_patch()
        own = (box or text).get_window_extent()
        across = max(frame.x0 - own.x0, 0) - max(own.x1 - frame.x1, 0)
        if across:
            x, y = axes.transData.transform(text.get_position())
            x, y = axes.transData.inverted().transform((x + across, y))
            text.set_position((float(x), float(y)))


def _overhang_in(axes: Axes) -> tuple[float, float, float, float]:
    """How far ticks, labels and names reach out of a frame: left, right, above, below."""
    figure: Any = axes.figure
    renderer: RendererBase = figure.canvas.get_renderer()
    axes.apply_aspect()
    outer, inner = axes.get_tightbbox(renderer), axes.get_window_extent(renderer)
    if outer is None:
        return 0.0, 0.0, 0.0, 0.0
    sides = (inner.x0 - outer.x0, outer.x1 - inner.x1, outer.y1 - inner.y1, inner.y0 - outer.y0)
    left, right, above, below = (max(side, 0.0) / figure.dpi for side in sides)
    return left, right, above, below


def _filled(text: str, width: int) -> str:
    """In as few lines as `width` allows, of about equal length, broken after commas if possible."""
    parts = text.split(", ")
    kept = [part.replace(" ", _NO_BREAK) if len(part) < width else part for part in parts]
    text = ", ".join(kept)
    lines = len(textwrap.wrap(text, width))
    least = min(width, max(map(len, text.split(" ")), default=1))
    widths = range(max(least, 1), width + 1)
    best = next(w for w in widths if len(textwrap.wrap(text, w)) <= lines)
    return textwrap.fill(text, best).replace(_NO_BREAK, " ")


def _height_in(text: str, line_in: float) -> float:
    return (text.count("\n") + 1) * line_in if text else 0.0
