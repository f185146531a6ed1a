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
from typing import Any

import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.real.local import launch
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.replay import step_ends_s
from experiments.simulated.simulate import make_timeline, train_simulated
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow
from experiments.validation.step_times.closed_formula import step_s
from experiments.validation.step_times.grid import NUM_STEPS, SKIPPED_STEPS, Cell

MEASURED_S = 3.0


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
                closed_s = step_s(clocks.script, profile, plan.net, cell.pattern)
                yield cell._asdict() | {
                    "measured_ms": 1e3 * measured_s,
                    "predicted_ms": 1e3 * predicted_s,
                    "error": predicted_s / measured_s - 1,
                    "closed_ms": 1e3 * closed_s,
                    "closed_error": closed_s / measured_s - 1,
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
