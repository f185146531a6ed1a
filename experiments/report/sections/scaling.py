"""Time to accuracy, and speed, over the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe, said_of
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import End, height_in, name_ends, set_log_axis
from experiments.report.figures.networks import fast_first
from experiments.report.figures.styles import Styles
from experiments.report.phrases import kinds, sentence, situation
from experiments.report.results_table import COMPARABLE
from experiments.report.section import Section
from host.words import listed, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Scaling"

_PANEL_IN = 1.25

_REST = [column for column in COMPARABLE if column != "workers"]


def section(data: ReportData) -> Section:
    """How the time to accuracy, and the speed of all workers together, change with their number."""
    table = data.table.query("not shared_gpu")
    if not any(list(_groups(table, measure)) for measure in _DRAW):
        return Section(finding="No setting was run with several numbers of workers: no scaling.")
    drawn = data.drawn(_REST)
    shown = drawn.table.query("not shared_gpu")
    drawings = {
        name: partial(_figure, groups, measure, data)
        for name, measure in (("time_over_workers", "time"), ("scaling", "speed"))
        if (groups := fast_first(list(_groups(shown, measure))))
    }
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(table)),
        notes=[
            *([drawn.left_out] if drawn.left_out else []),
            *_not_compared([group for measure in _DRAW for group in _groups(table, measure)]),
        ],
        drawings=drawings,
    )


def _figure(groups: Sequence[pd.DataFrame], measure: str, data: ReportData) -> Figure:
    """A panel for each situation, from fast networks to slow ones."""
    everything = pd.concat(groups)
    note = ""
    if measure == "time":
        note = "Medians of the seeds with their 95 % intervals."
        if math.inf in set(everything.time):
            note += " Crosses at the edge: half of the seeds or more missed."
    panels = []
    for group in groups:
        frame_in = height_in([*group.label.unique(), "proportional"], _PANEL_IN)
        draw = partial(_DRAW[measure], group=group, styles=data.styles, frame_in=frame_in)
        panels.append(Panel(title=situation(group, everything), draw=draw, height_in=frame_in))
    return column(panels, describe(everything, TITLE_COLUMNS), note)


def _groups(table: pd.DataFrame, measure: str) -> Iterator[pd.DataFrame]:
    """Rows that differ in workers and algorithm alone, with the "time" to accuracy or the "speed"
    of all workers together, where the measure is known of an algorithm with several numbers. A time
    that was missed is known, also of runs that ended before they had a speed.
    """
    table = table.dropna(subset=["workers"])
    speed = table.workers.astype(float) * table.steps_per_s
    table = table.assign(speed=speed, time=table.time_to_accuracy_s.where(table.target.notna()))
    for _, group in table.loc[table[measure] > 0].groupby(_REST, dropna=False):
        numbers = group.groupby("label").workers.nunique()
        is_finite = np.isfinite(group[measure]).groupby(group.label).any()
        if ((numbers > 1) & is_finite).any():
            yield group


def _alike(group: pd.DataFrame) -> pd.DataFrame:
    """The rows of the algorithms that were run with the same fewest and most workers: those of most
    algorithms, of as many the widest.
    """
    ends = group.groupby("label").workers.agg(["min", "max"])
    ends = ends.loc[ends["min"] < ends["max"]]
    ranges = ends.groupby(["min", "max"]).size()
    least, most = max(ranges.index, key=lambda own: (ranges[own], own[1] / own[0]))
    chosen = ends.index[(ends["min"] == least) & (ends["max"] == most)]
    return group.loc[group.label.isin(chosen)]


def _times(group: pd.DataFrame) -> pd.Series:
    """For each algorithm, the time to accuracy with the most workers over that with the fewest: inf
    where it misses with the most, 0 where it misses with the fewest alone.
    """
    ratios = {}
    for label, rows in _alike(group).groupby("label"):
        rows = rows.sort_values("workers")
        if np.isfinite(rows.time).any():
            first, last = rows.time.iloc[0], rows.time.iloc[-1]
            ratios[label] = math.inf if last == math.inf else last / first
    return pd.Series(ratios, dtype=float)


def _kept(group: pd.DataFrame) -> pd.Series:
    """For each algorithm, the part of a worker's speed that is left with the most workers."""
    kept = {}
    for label, rows in _alike(group).groupby("label"):
        rows = rows.sort_values("workers")
        kept[label] = rows.steps_per_s.iloc[-1] / rows.steps_per_s.iloc[0]
    return pd.Series(kept, dtype=float)


def _not_compared(groups: Sequence[pd.DataFrame]) -> list[str]:
    """A note on the algorithms that sentences leave out somewhere."""
    others = {
        str(label) for group in groups for label in set(group.label) - set(_alike(group).label)
    }
    if not others:
        return []
    return [
        "Sentences compare algorithms that were run with the same fewest and most workers, "
        f"somewhere without {listed(sorted(others))}."
    ]


def _finding(mark: str, table: pd.DataFrame) -> str:
    parts = [*_of_speeds(table), *_of_times(table)]
    return sentence(parts or ["no setting was run with several numbers of workers"], mark)


def _of_speeds(table: pd.DataFrame) -> list[str]:
    """Such as "from the fewest to the most workers, a keeps 90 % of a worker's speed"."""
    found = [_kept(group) for group in _groups(table, "speed")]
    if not found:
        return []
    kept = pd.concat(found)
    medians = kept.groupby(level=0).median()
    best, worst = medians.idxmax(), medians.idxmin()
    parts = [
        f"from the fewest to the most workers, {best} keeps {100 * medians[best]:.0f} % of a "
        "worker's speed" + (", in the median situation" if len(kept) > len(medians) else "")
    ]
    if best != worst:
        parts.append(f"{worst} keeps {100 * medians[worst]:.0f} %")
    return parts


def _of_times(table: pd.DataFrame) -> list[str]:
    """Such as "the time to accuracy with the most workers is 0.43 times that with the fewest for a,
    and 1.2 times for b", "c misses the target with the most workers".
    """
    found = [_times(group) for group in _groups(table, "time")]
    if not (known := [each for each in found if len(each)]):
        return []
    ratios = pd.concat(known)
    parts = []
    medians = ratios.groupby(level=0).median()
    medians = medians.loc[(medians > 0) & (medians < math.inf)]
    if len(medians):
        best, worst = medians.idxmin(), medians.idxmax()
        least, most = float(medians.min()), float(medians.max())
        said = f"{significant(least)} times that with the fewest for {best}"
        if best != worst:
            said += f", and {significant(most)} times for {worst}"
        parts.append(said_of(table, f"the time to accuracy with the most workers is {said}"))
    for value, workers in ((math.inf, "most"), (0.0, "fewest")):
        if labels := sorted(set(ratios.loc[ratios == value].index)):
            verb = "misses" if len(labels) == 1 else "miss"
            where = " in some situation" if len(known) > 1 else ""
            parts.append(f"{listed(labels)} {verb} the target with the {workers} workers{where}")
    return parts


def _draw_speed(axes: Axes, *, group: pd.DataFrame, styles: Styles, frame_in: float) -> None:
    """Both axes logarithmic; proportional growth is the slope of the dotted line."""
    counts = sorted(group.workers.unique())
    fastest = group[group.workers == counts[0]].speed.max()
    ends, known = [], list(group.speed)
    for label, rows in group.groupby("label"):
        rows, style = rows.sort_values("workers"), styles[str(label)]
        axes.plot(rows.workers.astype(float), rows.speed, label=label, **style)
        ends.append(_end(rows, "speed", style["color"]))
    ideal = [fastest * count / counts[0] for count in counts]
    axes.plot(counts, ideal, color="0.3", linestyle=":", linewidth=0.8, label="proportional")
    ends.append(End(counts[-1], ideal[-1], "proportional", "0.3"))
    _set_axes(axes, counts, [*known, *ideal], "steps/s of all workers")
    name_ends(axes, ends, frame_in)


def _draw_time(axes: Axes, *, group: pd.DataFrame, styles: Styles, frame_in: float) -> None:
    """Both axes logarithmic; what was missed stands at the upper edge."""
    counts = sorted(group.workers.unique())
    known = [t for column in ("time", "low", "high") for t in group[column] if 0 < t < math.inf]
    _set_axes(axes, counts, known, said_of(group, "time to accuracy (s)"))
    top, ends = axes.get_ylim()[1], []
    for label, rows in group.groupby("label"):
        rows, style = rows.sort_values("workers"), styles[str(label)]
        at, is_reached = rows.workers.astype(float), np.isfinite(rows.time)
        axes.plot(at, rows.time.where(is_reached), label=label, **style)
        axes.vlines(at, rows.low, rows.high.clip(upper=top), color=style["color"], lw=0.6)
        for number in at[~is_reached]:
            axes.plot(number, top, "x", ms=4, color=style["color"], clip_on=False)
        if is_reached.any():
            ends.append(_end(rows.loc[is_reached], "time", style["color"]))
        else:
            ends.append(End(counts[-1], top, str(label), style["color"]))
    name_ends(axes, ends, frame_in)


_DRAW: dict[str, Callable[..., None]] = {"speed": _draw_speed, "time": _draw_time}


def _end(rows: pd.DataFrame, column: str, color: str) -> End:
    last = rows.iloc[-1]
    return End(float(last.workers), float(last[column]), str(last.label), color)


def _set_axes(axes: Axes, counts: Sequence[int], known: Sequence[float], name: str) -> None:
    margin = (counts[-1] / counts[0]) ** 0.04
    set_log_axis(axes.xaxis, counts[0] / margin, counts[-1] * margin)
    axes.set_xticks(counts, [str(count) for count in counts])
    set_log_axis(axes.yaxis, min(known) / 1.15, max(known) * 1.15, 5)
    axes.set(xlabel="workers", ylabel=name)
