"""The curves of a set of runs: accuracy over time, steps or bytes, a panel for each situation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe
from experiments.report.data import MAX_LINES, MAX_PANELS, ReportData, foremost
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import End, height_in, name_ends, set_log_axis
from experiments.report.figures.networks import fast_first, network_name
from experiments.report.figures.styles import Styles
from experiments.report.phrases import situation
from experiments.report.results_table import AT_WORK, KEYS, varies
from experiments.report.scores import signs
from experiments.runs.summary import HAVE_TIMES

if TYPE_CHECKING:  # imported where it draws: more than a second, which a table need not wait for
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVER = {"time_s": "training time (s)", "step": "steps", "bytes_sent": "MB sent by a worker"}
"""What accuracy is drawn over: columns of metrics, and their axes' labels."""

_RANK = {"time_s": "place", "step": "steps_to_accuracy", "bytes_sent": "mb_to_accuracy"}
"""By which the algorithms of a panel are chosen."""

_PANEL_IN = 1.25
_TARGET = "0.3"


@dataclass(frozen=True, kw_only=True)
class _Curves:
    """What a panel shows: the rows of settings, of one situation or of several whose curves are
    equal, the evaluations of their runs, and a curve for each label.
    """

    rows: pd.DataFrame
    networks: tuple[Mapping[Any, Any], ...]
    target: float
    evaluations: pd.DataFrame
    lines: dict[str, pd.DataFrame]

    def identity(self) -> tuple[Any, ...]:
        """Equal for panels that would show the same."""
        numbers = {label: line.to_numpy(float).tobytes() for label, line in self.lines.items()}
        return tuple(sorted(numbers.items())), str(self.target)


def accuracy_plot(data: ReportData, over: str = "time_s") -> Figure | None:
    """Accuracy over one of OVER, a panel for each situation, from fast networks to slow ones; None
    where there is nothing to draw.

    A panel shows the five algorithms that are the best in it, and the baseline. Over steps and
    bytes, situations whose curves are equal have one panel. Over time, runs whose workers shared a
    GPU are left out.
    """
    evaluations = _evaluations(data, over)
    data = data.drawn(most=len(data.table)) if over == "time_s" else data
    panels = _merged(list(_panels(data, evaluations, over)))[:MAX_PANELS]
    if not panels:
        return None
    everything = pd.concat([panel.rows for panel in panels])
    ended = evaluations.loc[_is_broken(evaluations)]
    drawn = pd.concat([line for panel in panels for line in panel.lines.values()])
    note = "Lines: medians of the seeds, as far as all went. Bands: from the least to the greatest."
    if (drawn.least == drawn.greatest).all():
        note = "Lines: one seed each."
    if len(ended):
        note += " Crosses: a run failed or diverged there, and is in no line."
    return column(
        [_panel(panel, everything, evaluations, over, data.styles) for panel in panels],
        describe(everything, TITLE_COLUMNS),
        note,
    )


def curve(evaluations: pd.DataFrame, over: str = "time_s") -> pd.DataFrame:
    """Of the k-th evaluations of the runs that completed, or of all where none did: the medians of
    `over` and of the score, least and greatest score. It ends where the first of them does: those
    that are left would go on with another median.
    """
    is_complete = evaluations.status == "completed"
    evaluations = evaluations.loc[is_complete if is_complete.any() else ~is_complete]
    place = evaluations.groupby("folder").cumcount()
    evaluations = evaluations.loc[place < evaluations.folder.value_counts().min()]
    return evaluations.groupby(place).agg(
        **{over: (over, "median")},
        score=("score", "median"),
        least=("score", "min"),
        greatest=("score", "max"),
    )


def _evaluations(data: ReportData, over: str) -> pd.DataFrame:
    """Those that can be drawn, each with its run's label, task and status: on a logarithmic axis
    there is no place for what was before the first step.
    """
    rows = data.evaluations
    rows = rows.loc[rows[over].notna() & (rows[over] > 0), ["folder", over, "score"]]
    runs = data.runs.query("not shared_gpu") if over == "time_s" else data.runs
    rows = rows.merge(runs[["folder", "label", "task", "metric", "status"]], on="folder")
    return rows.astype({over: float}).assign(
        **{over: lambda frame: frame[over] / (1e6 if over == "bytes_sent" else 1)}
    )


def _panels(data: ReportData, evaluations: pd.DataFrame, over: str) -> Iterator[_Curves]:
    """Of each situation, from fast networks to slow ones."""
    keys = list(KEYS)
    by = _RANK[over] if _RANK[over] in data.table else "place"
    drawn = set(evaluations.folder)
    for group in fast_first(list(data.groups())):
        rows = foremost(group, MAX_LINES, by)
        runs = data.runs[[*keys, "folder", "target_score"]].merge(rows[keys], on=keys)
        own = evaluations.loc[evaluations.folder.isin(drawn.intersection(runs.folder))]
        if len(own):
            yield _Curves(
                rows=rows,
                networks=(rows.iloc[0].to_dict(),),
                target=float(runs.target_score.iloc[0]),
                evaluations=own,
                lines={str(k): curve(of, over) for k, of in own.groupby("label")},
            )


def _merged(panels: Sequence[_Curves]) -> list[_Curves]:
    """Panels that would show the same, as one."""
    same: dict[tuple[Any, ...], list[_Curves]] = {}
    for panel in panels:
        same.setdefault(panel.identity(), []).append(panel)
    return [
        _Curves(
            rows=pd.concat([panel.rows for panel in alike]),
            networks=tuple(name for panel in alike for name in panel.networks),
            target=alike[0].target,
            evaluations=alike[0].evaluations,
            lines=alike[0].lines,
        )
        for alike in same.values()
    ]


def _panel(
    panel: _Curves, everything: pd.DataFrame, evaluations: pd.DataFrame, over: str, styles: Styles
) -> Panel:
    title = situation(panel.rows, everything)
    if len(panel.networks) > 1 and varies(panel.rows, "net"):
        title = ", ".join(filter(None, [title, f"networks {_names(panel.networks)}"]))
    metric, task = panel.rows["metric"].iloc[0], panel.rows.task.iloc[0]
    alike = evaluations.loc[(evaluations.task == task) & (evaluations["metric"] == metric)]
    frame_in = height_in([*panel.lines, "target"], _PANEL_IN)
    return Panel(
        title=title,
        draw=partial(_draw, panel=panel, alike=alike, over=over, styles=styles, frame_in=frame_in),
        height_in=frame_in,
    )


def _names(networks: Sequence[Mapping[Any, Any]]) -> str:
    """By the preset alone, where that tells them apart."""
    presets = [str(row["net"]) for row in networks]
    is_enough = len(set(presets)) == len(presets)
    return ", ".join(presets if is_enough else [network_name(row) for row in networks])


def _draw(
    axes: Axes,
    *,
    panel: _Curves,
    alike: pd.DataFrame,
    over: str,
    styles: Styles,
    frame_in: float,
) -> None:
    """The lines, the target, and a cross where a run ended before its time."""
    bottom, top = _limits(alike, panel.target)
    ends = []
    for label, line in panel.lines.items():
        style = styles[label]
        every = len(line) // 8 or 1
        axes.plot(line[over], line.score, markevery=every, label=label, **style)
        if (line.greatest > line.least).any():
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(line[over], line.least, line.greatest, **band)
        end = min(max(line.score.iloc[-1], bottom), top)  # it may be infinite
        ends.append(End(line[over].iloc[-1], end, label, style["color"]))
    low, high = _from_view(panel.lines.values(), over, bottom, top)
    early = panel.evaluations[_is_broken(panel.evaluations)].groupby("folder").tail(1)
    if len(early):  # at the edge where it lies beyond
        x, y = early[over].clip(low, high), early.score.clip(bottom, top)
        axes.plot(x, y, "kx", ms=5, mew=1, clip_on=False, label="ended early")
    set_log_axis(axes.xaxis, low, high, 6)
    axes.set(xlabel=OVER[over], ylabel=f"validation {panel.rows['metric'].iloc[0]}")
    axes.set_ylim(bottom, top)
    axes.yaxis.set_major_locator(_few_ticks())
    if not math.isnan(panel.target):
        axes.axhline(panel.target, color=_TARGET, linestyle="--", linewidth=0.6, label="target")
        ends.append(End(high, panel.target, "target", _TARGET))
    name_ends(axes, ends, frame_in)


def _is_broken(evaluations: pd.DataFrame) -> pd.Series:
    """Which are of a run that failed or diverged: one that is at work goes on, and one that a
    search ended was sound.
    """
    return ~evaluations.status.isin([*HAVE_TIMES, AT_WORK])


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5, steps=[1, 2, 5, 10])


def _from_view(
    lines: Iterable[pd.DataFrame], over: str, bottom: float, top: float
) -> tuple[float, float]:
    """From the last number before a curve comes into view to the greatest."""
    begins, ends = [], []
    for line in lines:
        x, y = line[over].to_numpy(float), line.score.to_numpy(float)
        inside = np.flatnonzero((y >= bottom) & (y <= top))
        begins.append(x[max(inside[0] - 1, 0)] if inside.size else x[0])
        ends.append(x[-1])
    low, high = min(begins), max(ends)
    return (low, high) if low < high else (low / 1.5, high * 1.5)


def _limits(evaluations: pd.DataFrame, target: float) -> tuple[float, float]:
    """The better three quarters of the evaluations with finite scores, with the target and each
    sound run's best.
    """
    evaluations = evaluations.loc[np.isfinite(evaluations.score)]
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
