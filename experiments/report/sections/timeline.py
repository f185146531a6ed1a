"""The timeline of a step, from the traces of runs with `trace=true`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.report.cells import describe
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column, key
from experiments.report.phrases import sentence, situation
from experiments.report.results_table import COMPARABLE, SITUATION
from experiments.report.section import Section
from host.strangers.regular import read_text
from host.words import counted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "A step"

# As experiments.training.trace writes them, which imports torch.
TRACE = "trace.json"
COMPUTE = -1

MAX_RUNS, MAX_WORKERS = 4, 4
_ROW_IN = 0.12

_WAIT, _OPTIMIZER = "wait", "optimizer"
_STYLES = {  # of the names in a trace; operations have the last
    "forward": {"facecolor": "#8fbfdf", "hatch": ""},
    "backward": {"facecolor": "#3a78a8", "hatch": ""},
    _WAIT: {"facecolor": "white", "hatch": "////"},
    _OPTIMIZER: {"facecolor": "#1b3a52", "hatch": ""},
    "kernel": {"facecolor": "#e8c468", "hatch": "...."},
    "operation": {"facecolor": "#d98032", "hatch": "\\\\\\\\"},
}
_AFTER = "0.93"


def section(data: ReportData) -> Section:
    """What each worker does in a step of typical length, for one traced run of each algorithm."""
    runs = data.runs.loc[[(Path(folder) / TRACE).exists() for folder in data.runs.folder]]
    steps, problems = [], []
    for run in runs.drop_duplicates([*COMPARABLE, "label"]).to_dict("records"):
        try:
            steps.append((run, typical_step(load_trace(Path(run["folder"]) / TRACE))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            problems.append(f"{run['folder']}/{TRACE} cannot be read: {error}.")
        if len(steps) == MAX_RUNS:
            break
    if not steps:
        return Section(finding="No run has a trace (trace=true): no timeline.", notes=problems)
    timed = [(run, step) for run, step in steps if not run["shared_gpu"]]
    return Section(
        finding=sentence([_finding(run, step) for run, step in steps]),
        notes=problems,
        drawings={"timeline": partial(_figure, timed)} if timed else {},
    )


def load_trace(file: Path) -> pd.DataFrame:
    """The events of a trace: worker, lane, name, start_s, end_s.

    Raises OSError, ValueError, TypeError or KeyError where it cannot be read.
    """
    events = json.loads(read_text(file))["traceEvents"]
    return pd.DataFrame(
        [
            (e["pid"], e["tid"] - 1, e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
            for e in events
            if e["ph"] == "X"
        ],
        columns=["worker", "lane", "name", "start_s", "end_s"],
    )


def typical_step(events: pd.DataFrame) -> pd.DataFrame:
    """The events of the step of median length of the first worker, times from its begin on.

    A step lasts from the end of one optimizer step to that of the next. `attrs["length_s"]` is its
    length. Raises ValueError where there are not two steps.
    """
    is_mark = (events.worker == events.worker.min()) & (events["name"] == _OPTIMIZER)
    ends_s = np.sort(events.end_s[is_mark].to_numpy())
    if len(ends_s) < 2:
        raise ValueError("there are not two steps in it")
    order = np.argsort(np.diff(ends_s), kind="stable")
    chosen = order[(len(order) - 1) // 2]
    begin_s, end_s = ends_s[chosen], ends_s[chosen + 1]
    step = events[(events.end_s > begin_s) & (events.start_s < end_s)]
    step = step.assign(
        start_s=step.start_s.clip(lower=begin_s) - begin_s,
        end_s=step.end_s.clip(upper=end_s) - begin_s,
    )
    step.attrs["length_s"] = float(end_s - begin_s)
    return step


def _finding(run: dict[Any, Any], step: pd.DataFrame) -> str:
    """Such as "a step of bytegrad takes 34 ms, of which its worker waits 40 %"."""
    first = step[(step.worker == step.worker.min()) & (step["name"] == _WAIT)]
    waits = (first.end_s - first.start_s).sum() / step.attrs["length_s"]
    if run["shared_gpu"]:
        return f"a step of {run['label']} was taken by workers that shared a GPU, and is not drawn"
    return (
        f"a step of {run['label']} takes {1e3 * step.attrs['length_s']:.3g} ms"
        f"{' of simulated time' if run['backend'] == 'sim' else ''}, of which the first worker "
        f"waits {100 * waits:.0f} %"
    )


def _figure(steps: Sequence[tuple[dict[Any, Any], pd.DataFrame]]) -> Figure:
    """All steps over one axis of time, so that the lengths of two are compared by the eye."""
    everything = pd.DataFrame([run for run, _ in steps])
    longest_s = max(step.attrs["length_s"] for _, step in steps)
    panels = [
        Panel(
            title=_title(run, everything),
            draw=partial(_draw, step=step, end_s=longest_s),
            height_in=_ROW_IN * len(_rows(step)),
        )
        for run, step in steps
    ]
    has_shorter = any(step.attrs["length_s"] < longest_s for _, step in steps)
    styles = _STYLES | ({"after the step": {"facecolor": _AFTER}} if has_shorter else {})
    return column([*panels, key(_entries(styles))], describe(everything, (*SITUATION, "backend")))


def _title(run: dict[Any, Any], everything: pd.DataFrame) -> str:
    """The label, and what tells its situation from the others'."""
    where = situation(pd.DataFrame([run]), everything).split(", ")
    said = run["label"].split(", ")
    return ", ".join([*said, *(part for part in where if part and part not in said)])


def _entries(styles: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Callable[..., Artist]]]:
    from matplotlib.patches import Rectangle

    def swatch(style: Mapping[str, Any], x: float, y: float, width: float, height: float) -> Artist:
        return Rectangle((x, y), width, height, edgecolor="0.25", linewidth=0.4, **style)

    return [(name, partial(swatch, style)) for name, style in styles.items()]


def _rows(step: pd.DataFrame) -> list[tuple[int, int]]:
    """The workers and lanes that are drawn, from the top."""
    workers = sorted(step.worker.unique())[:MAX_WORKERS]
    pairs = step.loc[step.worker.isin(workers), ["worker", "lane"]].drop_duplicates()
    return sorted(map(tuple, pairs.to_numpy().tolist()))


def _draw(axes: Axes, *, step: pd.DataFrame, end_s: float) -> None:
    """A row for each worker's compute and each of its lanes, in milliseconds."""
    rows = _rows(step)
    for event in step.to_dict("records"):
        row = event["worker"], event["lane"]
        if row not in rows:
            continue
        name = event["name"] if event["name"] in _STYLES else "operation"
        axes.barh(
            rows.index(row),
            1e3 * (event["end_s"] - event["start_s"]),
            left=1e3 * event["start_s"],
            height=0.8,
            edgecolor="0.25",
            linewidth=0.3,
            label=name,
            facecolor=_STYLES[name]["facecolor"],
            hatch=_STYLES[name]["hatch"],
        )
    length_s = step.attrs["length_s"]
    if length_s < end_s:
        axes.axvspan(1e3 * length_s, 1e3 * end_s, color=_AFTER, linewidth=0, zorder=0)
    names = [f"worker {worker}" if lane == COMPUTE else f"lane {lane}" for worker, lane in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.grid(visible=False)
    axes.set(xlabel="ms", xlim=(0, 1e3 * end_s), ylim=(len(rows) - 0.5, -0.5))
    num_hidden = step.worker.nunique() - MAX_WORKERS
    if num_hidden > 0:
        axes.set_ylabel(f"and {counted(num_hidden, 'worker')} more")
