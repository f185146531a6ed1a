"""The plot of a set of runs: accuracy over training time, a panel for each situation."""

from __future__ import annotations

import math
import textwrap
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.errors import UserError
from experiments.tables import DETAIL, SITUATION, TITLE, describe, names, shown, varies

if TYPE_CHECKING:  # imported where it draws: more than a second, which a table need not wait for
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Styles = dict[str, dict[str, Any]]

_MARKERS = "osD^vP<>ph"
_DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def accuracy_plot(runs: pd.DataFrame, metrics: pd.DataFrame) -> Figure | None:
    """Accuracy over training time, a panel for each situation; None where no run was evaluated."""
    evaluations = metrics.query("kind == 'evaluation' and accuracy.notna()")
    if evaluations.empty:
        return None
    import matplotlib
    import seaborn
    from matplotlib.figure import Figure

    runs = runs.assign(label=labels(runs))
    situations = [group for _, group in runs.groupby(list(SITUATION), dropna=False)]
    own = [column for column in SITUATION if varies(runs, column)]
    styles = line_styles(set(runs.label))
    num_columns = min(len(situations), 3)
    num_rows = math.ceil(len(situations) / num_columns)
    width_in = max(7, 4.2 * num_columns)
    theme: Any = seaborn.axes_style("whitegrid")
    with matplotlib.rc_context(theme):
        figure = Figure(figsize=(width_in, 3.6 * num_rows + 1), layout="constrained")
        for place, group in enumerate(situations, start=1):
            panel = figure.add_subplot(num_rows, num_columns, place)
            _draw(panel, group, evaluations, styles)
            panel.set_title(textwrap.fill(describe(group, own), 45), fontsize="medium")
        figure.suptitle(textwrap.fill(describe(runs, TITLE), int(9 * width_in)))
        _add_legend(figure, styles)
    return figure


def labels(runs: pd.DataFrame) -> list[str]:
    """For each run the name of its line: of `names`, with the details that tell it from others."""
    rows = runs.assign(name=names(runs))
    # Simulated is never unlabelled beside measured.
    everywhere = {"backend"} if varies(rows, "backend") else set()
    telling = {
        name: [c for c in DETAIL if c in everywhere or varies(group, c)]
        for name, group in rows.groupby("name")
    }
    return [
        ", ".join([row["name"], *(shown(c, row[c]) for c in telling[row["name"]])])
        for row in rows.to_dict("records")
    ]


def curve(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Of the runs' k-th evaluations: the median time and accuracy, least and greatest accuracy."""
    return evaluations.groupby(evaluations.groupby("folder").cumcount()).agg(
        time_s=("time_s", "median"),
        accuracy=("accuracy", "median"),
        least=("accuracy", "min"),
        greatest=("accuracy", "max"),
    )


def save_plot(figure: Figure, out: Path, name: str = "accuracy") -> list[Path]:
    """Write `name`.png and .svg to `out`. Raises `UserError` where that cannot be."""
    files = [out / f"{name}.png", out / f"{name}.svg"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            figure.savefig(file, dpi=150)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose --out.") from error
    return files


def line_styles(names: set[str]) -> Styles:
    """A colour, a marker and a dash for each line, the same in all panels."""
    import seaborn

    looks = zip(
        sorted(names),
        *map(cycle, (seaborn.color_palette("colorblind"), _MARKERS, _DASHES)),
        strict=False,
    )
    return {n: {"color": c, "marker": m, "linestyle": dash} for n, c, m, dash in looks}


def _draw(panel: Axes, runs: pd.DataFrame, evaluations: pd.DataFrame, styles: Styles) -> None:
    """The lines of one situation, its target, and a cross where a run ended before its time."""
    target = runs.target_accuracy.iloc[0]
    broken = runs.folder[runs.status != "completed"]
    bottom, top = _limits(evaluations.merge(runs[["task"]].drop_duplicates()), broken, target)
    for label, style in styles.items():
        folders = runs.folder[runs.label == label]
        line = curve(evaluations.query("folder in @folders"))
        every = len(line) // 10 or 1
        panel.plot(line.time_s, line.accuracy, label=label, markevery=every, **style)
        if len(folders) > 1:
            band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            panel.fill_between(line.time_s, line.least, line.greatest, **band)
    ends = evaluations[evaluations.folder.isin(broken)].groupby("folder").tail(1)
    if len(ends):  # at the lower edge where it lies below
        heights = ends.accuracy.clip(lower=bottom)
        panel.plot(ends.time_s, heights, "kx", ms=9, mew=2, clip_on=False, label="ended early")
    if pd.notna(target):
        panel.axhline(target, color="0.3", linestyle="--", linewidth=1, label="target")
    panel.set(xlabel="training time (s)", ylabel="validation accuracy", ylim=(bottom, top))
    panel.set_xlim(left=0)


def _limits(evaluations: pd.DataFrame, broken: pd.Series, target: float) -> tuple[float, float]:
    """The upper three quarters of the evaluations, with the target and each sound run's best."""
    accuracies = evaluations.accuracy
    best = accuracies[~evaluations.folder.isin(broken)].groupby(evaluations.folder).max()
    low = np.fmin(np.fmin(accuracies.quantile(0.25), best.min()), target)
    high = np.fmax(accuracies.max(), target)
    margin = 0.05 * max(high - low, 0.02)
    return low - margin, high + margin


def _add_legend(figure: Figure, styles: Styles) -> None:
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        handles, names = panel.get_legend_handles_labels()
        entries |= zip(names, handles, strict=True)
    order = [*styles, *sorted(entries.keys() - styles.keys())]
    fitting = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, order))))
    figure.legend(
        handles=[entries[name] for name in order],
        loc="outside lower center",
        ncols=min(len(order), max(fitting, 1)),
        frameon=False,
    )
