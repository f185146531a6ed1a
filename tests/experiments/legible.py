"""Whether a figure is legible at the width of a journal's column, by what its renderer says."""

from itertools import combinations

import matplotlib.text
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.report.figures.column import MOST_BELOW


def texts(figure):
    """What all texts that are seen say, and their boxes in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    seen = set(figure.findobj(matplotlib.text.Text)) - _undrawn_ticks(figure)
    seen = [text for text in seen if text.get_visible() and text.get_text().strip()]
    box = matplotlib.text.Text.get_window_extent  # of the words, without an arrow of theirs
    return [(text.get_text(), box(text, renderer)) for text in seen]


def _undrawn_ticks(figure):
    """Labels of ticks beyond their axis's limits exist, and are not drawn."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    drawn = {tick for axis in axes for tick in axis._update_ticks()}
    made = {tick for axis in axes for tick in (*axis.majorTicks, *axis.minorTicks)}
    return {label for tick in made - drawn for label in (tick.label1, tick.label2)}


def check(figure, name, across=None):
    """That it is legible in a column of a journal, or over two: no text is cut off, or lies on
    another one. `across`: how many panels stand side by side, if this was asked for.
    """
    boxes = texts(figure)
    width, height = figure.get_size_inches() * figure.dpi
    is_wide = across or sum(axes.axison for axes in figure.axes) > MOST_BELOW
    assert width / figure.dpi == pytest.approx((180 if is_wide else 85) / 25.4), name
    sizes = {text.get_fontsize() for text in figure.findobj(matplotlib.text.Text)}
    assert min(sizes) >= 6.2 and max(sizes) <= 7, name
    assert not figure.legends and not [axes for axes in figure.axes if axes.get_legend()], name
    for text, box in boxes:
        is_inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert is_inside, f"{name}: {text!r} is cut off"
    for (text, box), (other, its) in combinations(boxes, 2):
        across = min(box.x1, its.x1) - max(box.x0, its.x0)
        along = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert across <= 1 or along <= 1, f"{name}: {text!r} lies on {other!r}"


def check_panels(figure, name):
    """That no two panels have equal lines, which a reader would take for two findings."""
    drawn = [_lines(axes) for axes in figure.axes if axes.get_lines()]
    assert len(set(drawn)) == len(drawn), f"{name}: two panels have equal data"


def _lines(axes):
    """All numbers of a panel's lines; of a horizontal or vertical one, only where it is."""
    return tuple(np.asarray(line.get_xydata(), float).tobytes() for line in axes.get_lines())
