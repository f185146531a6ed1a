"""Simulated time against the real: `python -m experiments.validate --out results/validation`.

Every cell of a grid is run by real workers over a shaped network and predicted beside it. The
prediction knows a rehearsal of one worker and the condition asked for, and no run over a network.
Times are means over the steps after the first `SKIPPED_STEPS`, in which connections open.
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.real.local import launch
from experiments.report.figures.plots import save_plot
from experiments.report.figures.styles import line_styles
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.replay import step_ends_s
from experiments.simulated.simulate import make_timeline, train_simulated
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow
from host.environment import environment
from host.markdown import table
from host.words import counted

ALGORITHMS = ("allreduce", "bytegrad", "qsgd", "decentralized", "local_sgd", "power_sgd")
RATES_MBIT = (50, 200, 1000)
DELAYS_MS = (1, 10)
RUNS = (("mlp", 2), ("mlp", 4), ("cnn", 4))
"""Models and numbers of workers."""

SKIPPED_STEPS = 24
"""In which TCP's windows open: an exchange took up to 1.7 times longer for the first 20 steps. A
multiple of the longest period, that of local SGD.
"""
NUM_STEPS = 2 * SKIPPED_STEPS
MEASURED_S = 3.0

_CELLS = {
    "algorithm": "{algo}",
    "model": "{model}",
    "workers": "{workers}",
    "Mbit/s": "{rate_mbit:g}",
    "delay (ms)": "{delay_ms:g}",
    "measured (ms a step)": "{measured_ms:.1f}",
    "predicted": "{predicted_ms:.1f}",
    "error": "{error:+.1%}",
}
"""The columns of the page, and how a row of `compare` says each."""


class Cell(NamedTuple):
    """One point of the grid."""

    algo: str
    model: str
    workers: int
    rate_mbit: float
    delay_ms: float

    @property
    def overrides(self) -> list[str]:
        """Of the app's configuration."""
        return [
            *(f"algo={self.algo}", f"model={self.model}", "net=slow_tcp"),
            *(f"workers={self.workers}", f"cluster.sharing={self.workers}"),
            *(f"net.rate_mbit={self.rate_mbit}", f"net.delay_ms={self.delay_ms}"),
            *(f"max_steps={NUM_STEPS}", f"eval_every={NUM_STEPS}"),
            f"log_every={SKIPPED_STEPS}",
        ]


GRID = [
    Cell(algo, model, workers, rate_mbit, delay_ms)
    for algo, (model, workers) in itertools.product(ALGORITHMS, RUNS)
    for rate_mbit, delay_ms in itertools.product(RATES_MBIT, DELAYS_MS)
]
CI_GRID = [
    Cell("allreduce", "mlp", 4, 400, 1),
    *(Cell(algo, "mlp", 2, 100, 10) for algo in ("bytegrad", "local_sgd")),
]


def compare(cells: Sequence[Cell], seconds: float = MEASURED_S) -> Iterator[dict[str, Any]]:
    """Predict and measure every cell; yields rows of milliseconds a step and relative errors.

    Args:
        cells: neighbours of one algorithm, model and number of workers share a rehearsal.
        seconds: that every rehearsal and every measurement lasts at least.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    with tempfile.TemporaryDirectory() as folder:
        for _, cells_of_one in itertools.groupby(cells, lambda cell: cell[:3]):
            group = list(cells_of_one)
            plans = [make_plan(compose_config(cell.overrides), Path(folder)) for cell in group]
            data = plans[0].task.load()
            profile = rehearse(plans[0], data, sharing=group[0].workers, seconds=seconds)
            simulated = make_plan(
                compose_config([*group[0].overrides, "backend=sim"]), Path(folder)
            )
            _, clocks = train_simulated(simulated, data, profile, lambda row: None)
            for cell, plan in zip(group, plans, strict=True):
                expected_s = _mean_step_s(step_ends_s(clocks.script, make_timeline(plan, profile)))
                backend, measured_s = _measure(plan, data, _enough_steps(expected_s, seconds))
                timeline = make_timeline(plan, profile, backend)
                predicted_s = _mean_step_s(step_ends_s(clocks.script, timeline))
                yield cell._asdict() | {
                    "measured_ms": 1e3 * measured_s,
                    "predicted_ms": 1e3 * predicted_s,
                    "error": predicted_s / measured_s - 1,
                }


def _enough_steps(step_s: float, seconds: float) -> int:
    """The number of steps to measure: as many as are simulated, more where these take less than
    `seconds`.
    """
    once = NUM_STEPS - SKIPPED_STEPS
    return SKIPPED_STEPS + once * max(1, math.ceil(seconds / (once * step_s)))


def _measure(plan: Plan, data: TaskData, num_steps: int) -> tuple[str, float]:
    """What shapes the network, and seconds a step on the training clock of a real worker."""
    plan = replace(plan, max_steps=num_steps, eval_every=num_steps)
    backends: list[str] = []
    ends_s: dict[int, float] = {}

    def on_row(row: MetricsRow) -> None:
        if not row.is_evaluation:
            ends_s[row.step] = row.time_s

    launch(plan, data, lambda network: backends.append(network.backend), on_row)
    took_s = ends_s[num_steps] - ends_s[SKIPPED_STEPS]
    return backends[0], took_s / (num_steps - SKIPPED_STEPS)


def _mean_step_s(ends_s: Sequence[float]) -> float:
    return (ends_s[-1] - ends_s[SKIPPED_STEPS - 1]) / (len(ends_s) - SKIPPED_STEPS)


def summary(rows: pd.DataFrame) -> str:
    """One sentence on the errors of `compare`'s rows."""
    errors = rows.error.abs()
    worst = rows.loc[errors.idxmax()].to_dict()
    return (
        f"Mean absolute error {100 * errors.mean():.1f} %, median {100 * errors.median():.1f} %, "
        f"worst {100 * worst['error']:+.1f} % ({worst['algo']}, {worst['model']}, "
        f"{worst['workers']} workers, {worst['rate_mbit']:g} Mbit/s, {worst['delay_ms']:g} ms), "
        f"over {len(rows)} cells."
    )


def markdown(rows: pd.DataFrame) -> str:
    """The page: command, machine, summary, and a table of all cells."""
    host = environment()
    records = rows.to_dict("records")
    lines = [
        "# Simulated time against the real",
        "",
        f"`python -m experiments.validate --out results/validation`, "
        f"{counted(host['cores'], 'core')} ({host['cpu']}), "
        f"torch {host['packages']['torch']}, gloo.",
        "Measured: real workers over shaped links. Predicted: from the rehearsal of one worker "
        "and the condition asked for. Times are means over "
        f"{NUM_STEPS - SKIPPED_STEPS} steps, or more that take {MEASURED_S:g} s, after "
        f"{SKIPPED_STEPS} in which TCP's windows open.",
        "",
        summary(rows),
        "",
        table(
            list(_CELLS),
            [[f.format(**row) for f in _CELLS.values()] for row in records],
            "llrrrrrr",
        ),
    ]
    return "\n".join(lines) + "\n"


def plot(rows: pd.DataFrame, out: Path) -> None:
    """Predicted over measured, both on logarithmic axes, as `time.png` and `.svg`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    for algo, style in line_styles(rows.algo).items():
        own = rows[rows.algo == algo]
        axes.loglog(own.measured_ms, own.predicted_ms, **style | {"linestyle": "none"}, label=algo)
    ends = [rows.measured_ms.min() * 0.8, rows.measured_ms.max() * 1.25]
    axes.loglog(ends, ends, color="0.3", linewidth=1, label="equal")
    axes.fill_between(
        ends, [0.92 * e for e in ends], [1.08 * e for e in ends], color="0.85", label="within 8 %"
    )
    axes.set(xlabel="measured (ms a step)", ylabel="predicted (ms a step)")
    axes.legend(frameon=False)
    save_plot(figure, out, "time")
