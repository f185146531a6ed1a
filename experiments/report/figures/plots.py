"""The curves of a set of runs: accuracy over time, steps or bytes, a panel for each situation."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe
from experiments.report.figures.styles import Styles, line_styles
from experiments.report.results_table import SITUATION, named, varies
from experiments.report.scores import scored, signs
from host.output import writing

if TYPE_CHECKING:  # imported where it draws: more than a second, which a table need not wait for
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVER = {"time_s": "training time (s)", "step": "steps", "bytes_sent": "MB sent by a worker"}
"""What accuracy is drawn over: columns of metrics, and their axes' labels."""

_DPI = 150


def accuracy_plot(
    runs: pd.DataFrame, metrics: pd.DataFrame, over: str = "time_s", styles: Styles | None = None
) -> Figure | None:
    """Accuracy over one of OVER, a panel for each situation; None where there is nothing to draw.

    `styles` are of `line_styles`, for the labels of more runs. Over time, runs whose workers shared
    a GPU are left out.
    """
    runs = named(runs)
    runs = runs.query("not shared_gpu") if over == "time_s" else runs
    evaluations = _evaluations(runs, metrics, over)
    if evaluations.empty:
        return None
    import matplotlib
    import seaborn
    from matplotlib.figure import Figure

    situations = [group for _, group in runs.groupby(list(SITUATION), dropna=False)]
    own = [column for column in SITUATION if varies(runs, column)]
    styles = styles or line_styles(runs.label)
    num_columns = min(len(situations), 3)
    num_rows = math.ceil(len(situations) / num_columns)
    width_in = max(7, 4.2 * num_columns)
    theme: Any = seaborn.axes_style("whitegrid")
    with matplotlib.rc_context(theme):
        figure = Figure(figsize=(width_in, 3.6 * num_rows + 1), layout="constrained")
        for place, group in enumerate(situations, start=1):
            panel = figure.add_subplot(num_rows, num_columns, place)
            _draw(panel, group, evaluations, over, styles)
            panel.set_title(textwrap.fill(describe(group, own), 45), fontsize="medium")
        figure.suptitle(textwrap.fill(describe(runs, TITLE_COLUMNS), int(9 * width_in)))
        add_legend(figure, [label for label in styles if label in set(runs.label)])
    return figure


def curve(evaluations: pd.DataFrame, over: str = "time_s") -> pd.DataFrame:
    """Of the runs' k-th evaluations: the medians of `over` and of the score, least and greatest
    score. It ends where the first of the completed runs does: the runs that are left would go on
    with another median.
    """
    is_complete = evaluations.status == "completed"
    counts = evaluations.loc[is_complete if is_complete.any() else ~is_complete].folder
    place = evaluations.groupby("folder").cumcount()
    evaluations = evaluations.loc[place < counts.value_counts().min()]
    return evaluations.groupby(place).agg(
        **{over: (over, "median")},
        score=("score", "median"),
        least=("score", "min"),
        greatest=("score", "max"),
    )


def save_plot(figure: Figure, out: Path, name: str = "accuracy") -> list[Path]:
    """Write `name`.png and .svg to `out`. Raises `UserError` where that cannot be."""
    png, svg = save_png(figure, out, name), out / f"{name}.svg"
    with writing(out):
        figure.savefig(svg, dpi=_DPI)
    return [png, svg]


def save_png(figure: Figure, out: Path, name: str) -> Path:
    """Write `name`.png alone, as git keeps it. Raises `UserError` where that cannot be."""
    png = out / f"{name}.png"
    figure.set_dpi(_DPI)
    figure.draw_without_rendering()  # it finds its layout, which is half of the work, here and once
    figure.set_layout_engine("none")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        _write_png(figure, png)
    return png


def _write_png(figure: Figure, file: Path) -> None:
    """In 256 colours, which a drawing does not miss: a third or a quarter of the bytes are left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    few_colors = drawn.quantize(256, dither=Image.Dither.NONE)
    few_colors.save(file, format="PNG", optimize=True)


def add_legend(figure: Figure, order: list[str]) -> None:
    """One legend of all panels below them; what `order` does not name stands last."""
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        handles, names = panel.get_legend_handles_labels()
        entries |= zip(names, handles, strict=True)
    order = [*(n for n in order if n in entries), *sorted(entries.keys() - set(order))]
    fitting = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, order))))
    figure.legend(
        handles=[entries[name] for name in order],
        loc="outside lower center",
        ncols=min(len(order), max(fitting, 1)),
        frameon=False,
    )


def _evaluations(runs: pd.DataFrame, metrics: pd.DataFrame, over: str) -> pd.DataFrame:
    """Those of `runs` that can be drawn, each with its run's label, task and status."""
    rows = scored(metrics)
    rows = rows.loc[rows[over].notna(), ["folder", over, "score"]]
    rows = rows.merge(runs[["folder", "label", "task", "metric", "status"]], on="folder")
    return rows.astype({over: float}).assign(
        **{over: lambda frame: frame[over] / (1e6 if over == "bytes_sent" else 1)}
    )


def _draw(
    panel: Axes, runs: pd.DataFrame, evaluations: pd.DataFrame, over: str, styles: Styles
) -> None:
    """The lines of one situation, its target, and a cross where a run ended before its time."""
    target, metric = runs.target_score.iloc[0], runs["metric"].iloc[0]
    alike = (evaluations.task == runs.task.iloc[0]) & (evaluations["metric"] == metric)
    bottom, top = _limits(evaluations.loc[alike], target)
    evaluations = evaluations.loc[evaluations.folder.isin(runs.folder)]
    for label, rows in evaluations.groupby("label"):
        line, style = curve(rows, over), styles[str(label)]
        every = len(line) // 10 or 1
        panel.plot(line[over], line.score, label=label, markevery=every, **style)
        if rows.folder.nunique() > 1:
            band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            panel.fill_between(line[over], line.least, line.greatest, **band)
    ends = evaluations[evaluations.status != "completed"].groupby("folder").tail(1)
    if len(ends):  # at the edge where it lies beyond
        heights = ends.score.clip(lower=bottom, upper=top)
        panel.plot(ends[over], heights, "kx", ms=9, mew=2, clip_on=False, label="ended early")
    if pd.notna(target):
        panel.axhline(target, color="0.3", linestyle="--", linewidth=1, label="target")
    panel.set(xlabel=OVER[over], ylabel=f"validation {metric}", ylim=(bottom, top))
    panel.set_xlim(left=0)


def _limits(evaluations: pd.DataFrame, target: float) -> tuple[float, float]:
    """The better three quarters of the evaluations, with the target and each sound run's best."""
    sign = signs(evaluations)
    if (sign < 0).any():
        flipped = evaluations.assign(score=-evaluations.score, metric=None)
        bottom, top = _limits(flipped, -target)
        return (0.0, 1.0) if (bottom, top) == (0.0, 1.0) else (-top, -bottom)
    scores = evaluations.score
    is_sound = evaluations.status == "completed"
    best = scores[is_sound].groupby(evaluations.folder[is_sound]).max()
    low = np.fmin(np.fmin(scores.quantile(0.25), best.min()), target)
    high = np.fmax(scores.max(), target)
    if np.isnan(low) or np.isnan(high):  # no evaluation of a named task, and no target
        return 0.0, 1.0
    margin = 0.05 * max(high - low, 0.02)
    return low - margin, high + margin
