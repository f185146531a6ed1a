"""What a search for settings has found: which fields matter, its trials over time, the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import End, name_ends
from experiments.report.phrases import sentence
from experiments.report.section import PageTable, Section
from experiments.report.tuned import TunedTrial, Tuning, said
from host.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Search for settings"

_PANEL_IN = 1.5
_ONE, _BEST = "#3a78a8", "#d98032"


def section(data: ReportData) -> Section:
    """The best trials of each search, and the command lines that run them."""
    tunings = [tuning for tuning in data.tunings if tuning.best]
    if not tunings:
        return Section(finding="No settings were searched (python -m experiments.tune).")
    tables = {"tuning_best": _best(tunings)}
    if any(any(shares.values()) for shares in (t.importances for t in tunings)):
        tables["tuning_importance"] = _importance(tunings)
    return Section(
        finding=sentence([_finding(tuning) for tuning in tunings]),
        notes=[f"{tuning.folder} goes on with: {tuning.command}" for tuning in tunings],
        tables=tables,
        drawings={"tuning_trials": partial(_figure, tunings)},
    )


def _finding(tuning: Tuning) -> str:
    """Such as "the best of 30 trials has time_to_accuracy 3.2 s, the defaults 5.1 s"."""
    num_trials = counted(sum(t.state != "failed" for t in tuning.trials), "trial")
    if len(tuning.objectives) > 1:
        names = " and ".join(name for name, _, _ in tuning.objectives)
        many = len(tuning.best) != 1
        return (
            f"of {num_trials}, {len(tuning.best)} {'are' if many else 'is'} such that no other one "
            f"is better in {names}"
        )
    name, unit, _ = tuning.objectives[0]
    best = said(tuning.trial(tuning.best[0]).values[0], unit)
    defaults = tuning.defaults
    beside = "" if defaults is None else f", the defaults {said(defaults.values[0], unit)}"
    return f"the best of {num_trials} has {name} {best}{beside}"


def _best(tunings: Sequence[Tuning]) -> PageTable:
    rows = [
        {
            "search": tuning.folder,
            "trial": number,
            "objectives": _told(tuning, tuning.trial(number)),
            "command": command,
        }
        for tuning in tunings
        for number, command in zip(tuning.best, tuning.commands, strict=True)
    ]
    numbers = pd.DataFrame(rows)
    return PageTable(
        caption="The best trials, each with the command that runs its settings, with the app's own "
        "seed. One seed was searched: score them by others.",
        cells={name: [str(row[name]) for row in rows] for name in numbers.columns},
        numbers=numbers,
    )


def _told(tuning: Tuning, trial: TunedTrial) -> str:
    pairs = zip(tuning.objectives, trial.values, strict=True)
    return ", ".join(f"{name} {said(value, unit)}" for (name, unit, _), value in pairs)


def _importance(tunings: Sequence[Tuning]) -> PageTable:
    numbers = pd.DataFrame(list(_shares(tunings)))
    cells = {name: numbers[name].astype(str).tolist() for name in numbers.columns}
    cells["importance"] = [f"{share:.2f}" for share in numbers.importance]
    return PageTable(
        caption="How much each field matters to what the best trials have in common, as shares of "
        "1 (PED-ANOVA, arXiv 2304.10255).",
        cells=cells,
        numbers=numbers,
    )


def _shares(tunings: Sequence[Tuning]) -> Iterator[dict[str, Any]]:
    for tuning in tunings:
        for objective, shares in tuning.importances.items():
            for field, share in sorted(shares.items(), key=lambda pair: -pair[1]):
                yield {
                    "search": tuning.folder,
                    "objective": objective,
                    "field": field,
                    "importance": share,
                }


def _figure(tunings: Sequence[Tuning]) -> Figure:
    panels = [
        Panel(title=tuning.folder, draw=partial(_draw, tuning=tuning), height_in=_PANEL_IN)
        for tuning in tunings
    ]
    note = "Crosses: trials that ended early, missed or failed."
    is_any = any(t.state != "complete" for tuning in tunings for t in tuning.trials)
    return column(panels, note=note if is_any else "")


def _draw(axes: Axes, *, tuning: Tuning) -> None:
    ends = (_draw_trials if len(tuning.objectives) == 1 else _draw_front)(axes, tuning)
    name_ends(axes, ends, _PANEL_IN)


def _draw_trials(axes: Axes, tuning: Tuning) -> list[End]:
    """Every completed trial, the best so far, and where others were ended."""
    name, unit, is_maximized = tuning.objectives[0]
    done = [t for t in tuning.trials if t.state == "complete" and math.isfinite(t.values[0])]
    numbers, values = [t.number for t in done], [t.values[0] for t in done]
    axes.plot(numbers, values, "o", color=_ONE, label="completed")
    best = list(accumulate(values, max if is_maximized else min))
    axes.step(numbers, best, where="post", color=_BEST, label="best so far")
    others = [t.number for t in tuning.trials if t.number not in numbers]
    bottom = axes.get_xaxis_transform()  # no number, so no height
    for number in others:
        axes.plot(number, 0.04, "x", color="0.5", transform=bottom)
    axes.set(xlabel="trial", ylabel=f"{name} ({unit})" if unit else name)
    if not done:
        return []
    last = End(numbers[-1], values[-1], "completed", _ONE)
    return [last, End(numbers[-1], best[-1], "best so far", _BEST)]


def _draw_front(axes: Axes, tuning: Tuning) -> list[End]:
    """All trials by both objectives; those that none beats in both are connected."""
    done = [t for t in tuning.trials if t.state == "complete" and all(map(math.isfinite, t.values))]
    axes.plot(*_places(done), "o", color="0.6", label="completed")
    front = sorted((t for t in done if t.number in tuning.best), key=lambda t: t.values[0])
    axes.plot(*_places(front), "o-", color=_BEST, label="none is better in both")
    (x, x_unit, _), (y, y_unit, _) = tuning.objectives
    axes.set(xlabel=f"{x} ({x_unit})" if x_unit else x, ylabel=f"{y} ({y_unit})" if y_unit else y)
    others = [t for t in done if t not in front]
    ends = [(front, "none is better in both", _BEST), (others, "completed", "0.4")]
    return [End(own[-1].values[0], own[-1].values[1], n, color) for own, n, color in ends if own]


def _places(trials: Sequence[TunedTrial]) -> tuple[list[float], list[float]]:
    return [t.values[0] for t in trials], [t.values[1] for t in trials]
