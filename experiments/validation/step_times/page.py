"""The page of cells, `time.md`, and its figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.figures.column import Panel, column, key
from experiments.report.figures.files import save_png
from experiments.report.figures.names import set_log_axis
from experiments.report.figures.styles import line_styles
from experiments.validation.step_times.grid import NUM_STEPS, PRESETS, SKIPPED_STEPS
from experiments.validation.step_times.measure import LOSSY_S, MEASURED_S
from host.markdown import table
from host.words import counted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.validation.step_times.record import Record

SHORT_MS = 35
_PANEL_IN = 2.6
_BAND = "0.85"

_NOT_MODELLED = """\
Not modelled, and likely behind most large errors:

- Workers of one host take turns on its cores. Which of them comes late, and which of the others
  waits for it, changes from step to step: here all wait for the same part of what they compute.
- Many streams over the switch have small frames, each of which costs it as much as a large one.
  Over lan_1g, where there is no switch, 8 streams take longer than predicted; why is not known.
- TCP's windows under loss are those of the steady state of long flows. New connections over wan
  still have larger ones: the first three all-reduces of 2.1 MB took 0.7 to 1.1 s, the next twenty
  1.9 on the mean. On many streams a window never grows beyond the part of a message that it
  carries: all-reduces of wan by 8 streams come out too fast.
- Notices for a slow worker's exchanges, and for small segments of its rings, wait behind what it
  gets."""

_CELLS = {
    "algorithm": "{algo}",
    "model": "{model}",
    "workers": "{workers}",
    "network": "{net}",
    "streams": "{streams}",
    "pattern": "{pattern}",
    "measured (ms a step)": "{measured_ms:.1f}",
    "predicted": "{predicted_ms:.1f}",
    "error": "{error:+.1%}",
    "closed formula": "{closed_error:+.1%}",
}
"""The columns of the page, and how a row of `predict` says each."""


def summary(rows: pd.DataFrame) -> str:
    """Two sentences on the errors of `predict`'s rows."""
    errors = rows.error.abs()
    worst = rows.loc[errors.idxmax()].to_dict()
    closed = rows.closed_error.abs()
    nearer = int((errors < closed).sum())
    return (
        f"Mean absolute error {100 * errors.mean():.1f} %, median {100 * errors.median():.1f} %, "
        f"worst {100 * worst['error']:+.1f} % ({worst['algo']}, {worst['model']}, "
        f"{worst['workers']} workers, {worst['net']}, {counted(worst['streams'], 'stream')}, "
        f"{worst['pattern']}), over {counted(len(rows), 'cell')}. The closed formula is off by "
        f"{100 * closed.mean():.1f} % on the mean, {100 * closed.max():.0f} % at worst; the "
        f"simulator is nearer in {nearer} of them."
    )


def by_group(rows: pd.DataFrame) -> str:
    """A table: the errors of the third that was held out, of each network of the reference study,
    of the others together, of short steps, and of each transport and number of workers.
    """
    groups = {
        "held out": rows[rows.held_out],
        "all others": rows[~rows.held_out],
        **{f"`net={net}`": rows[rows.net == net] for net in PRESETS},
        "other rates and delays": rows[~rows.net.isin(PRESETS)],
        f"steps under {SHORT_MS} ms": rows[rows.measured_ms < SHORT_MS],
        **{f"{k} {'stream' if k == 1 else 'streams'}": own for k, own in rows.groupby("streams")},
        **{str(pattern): own for pattern, own in rows.groupby("pattern")},
        **{f"{n} workers": own for n, own in rows.groupby("workers")},
    }
    header = ["cells", "how many", "mean error", "mean absolute error", "worst", "closed formula"]
    lines = [
        [
            name,
            str(len(own)),
            f"{own.error.mean():+.1%}",
            f"{own.error.abs().mean():.1%}",
            f"{own.error.loc[own.error.abs().idxmax()]:+.1%}",
            f"{own.closed_error.abs().mean():.1%}",
        ]
        for name, own in groups.items()
        if len(own)
    ]
    return table(header, lines, "lrrrrr")


def markdown(rows: pd.DataFrame, record: Record) -> str:
    """The page: command, machine, summary, and a table of all cells."""
    machine = record.machine
    lines = [
        "# Simulated time against the real",
        "",
        f"`python -m experiments.validate --out results/validation`, "
        f"{counted(machine['cores'], 'core')} ({machine['cpu']}), "
        f"torch {machine['packages']['torch']}, gloo, {machine['started'][:10]}."
        f"{_beside(machine)}{_again(record)}",
        "`time.jsonl` has what was measured; `python -m experiments.validate --again` predicts it "
        "once more.",
        "",
        "Measured: real workers over shaped links. Predicted: from the rehearsal of one worker "
        "and the condition asked for. Times are means over "
        f"{NUM_STEPS - SKIPPED_STEPS} steps, or more that take {MEASURED_S:g} s, {LOSSY_S:g} s "
        f"under loss, after {SKIPPED_STEPS} in which TCP's windows open.",
        "",
        summary(rows),
        "",
        "No constant of either was fitted to any of these cells. Terms of the model were chosen in "
        "view of some of them. Of the third that is held out, which a checksum draws, two led to "
        "one term, for the flows of a slow link in an all-to-all, which was then measured by "
        "itself; the others to none. The closed formula is compute, then bytes over the rate and "
        "steps times the delay, without overlap; its column is the mean absolute error.",
        "",
        by_group(rows),
        "",
        _NOT_MODELLED,
        "",
        table(
            list(_CELLS),
            [[f.format(**row) for f in _CELLS.values()] for row in rows.to_dict("records")],
            "llrlrlrrrr",
        ),
    ]
    return "\n".join(lines) + "\n"


def _beside(machine: Mapping[str, Any]) -> str:
    return f" Beside it ran {machine['beside']}." if machine["beside"] else ""


def _again(record: Record) -> str:
    """A sentence on the cells that were measured again, for each day and company."""
    later = Counter(
        (again["started"][:10], again["packages"]["torch"], _beside(again))
        for again in (one.again for one in record.cells)
        if again is not None
    )
    return "".join(
        f" {counted(number, 'cell')} at the end of the table: measured again, {day}, torch {torch}."
        f"{beside}"
        for (day, torch, beside), number in sorted(later.items())
    )


def plot(rows: pd.DataFrame, out: Path) -> None:
    """Predicted over measured, both on logarithmic axes, as `time.png`."""
    save_png(_figure(rows), out, "time")


def _figure(rows: pd.DataFrame) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    styles: dict[str, dict[str, Any]] = {
        algo: style | {"linestyle": "none"} for algo, style in line_styles(rows.algo).items()
    }

    def mark(style: dict[str, Any], x: float, y: float, width: float, height: float) -> Artist:
        return Line2D([x + width / 2], [y + height / 2], **style)

    def band(x: float, y: float, width: float, height: float) -> Artist:
        return Rectangle((x, y), width, height, color=_BAND)

    def draw(axes: Axes) -> None:
        ends = [rows.measured_ms.min() * 0.8, rows.measured_ms.max() * 1.25]
        axes.fill_between(ends, [0.92 * e for e in ends], [1.08 * e for e in ends], color=_BAND)
        axes.plot(ends, ends, color="0.3", linewidth=0.8)
        for algo, style in styles.items():
            own = rows[rows.algo == algo]
            axes.plot(own.measured_ms, own.predicted_ms, **style)
        set_log_axis(axes.xaxis, *ends)
        set_log_axis(axes.yaxis, *ends)
        axes.set(xlabel="measured (ms a step)", ylabel="predicted (ms a step)")

    entries = [(algo, partial(mark, style)) for algo, style in styles.items()]
    panel = Panel(title="", draw=draw, height_in=_PANEL_IN)
    return column([panel, key([*entries, ("within 8 %", band)])])
