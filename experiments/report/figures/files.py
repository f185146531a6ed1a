"""Figures as files: PNG of few bytes, and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from host.output import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 200


def save_plot(figure: Figure, out: Path, name: str = "accuracy") -> list[Path]:
    """Write `name`.png and .svg to `out`. Raises `UserError` where that cannot be."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    png, svg = save_png(figure, out, name), out / f"{name}.svg"
    with writing(out):
        FigureCanvasSVG(figure).print_svg(svg)  # savefig() draws all of it twice
    return [png, svg]


def save_png(figure: Figure, out: Path, name: str) -> Path:
    """Write `name`.png alone, as git keeps it. Raises `UserError` where that cannot be."""
    png = out / f"{name}.png"
    _settle(figure)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        _write_png(figure, png)
    return png


def _settle(figure: Figure) -> None:
    """It finds its layout, if it has any to find, here and once."""
    from matplotlib.layout_engine import PlaceHolderLayoutEngine

    figure.set_dpi(_DPI)
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine | None):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _write_png(figure: Figure, file: Path) -> None:
    """In 256 colours, which a drawing does not miss: a third or a quarter of the bytes are left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    few_colors = drawn.quantize(256, dither=Image.Dither.NONE)
    few_colors.save(file, format="PNG", optimize=True)
