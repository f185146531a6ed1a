"""Step times of real workers, cell by cell, each beside what its prediction needs.

The prediction knows a rehearsal of one worker, the steps of a simulated run and the condition asked
for, and no run over a network. Times are means over the steps after the first `SKIPPED_STEPS`, in
which connections open.
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
from experiments.validation.step_times.grid import NUM_STEPS, SKIPPED_STEPS, Cell
from experiments.validation.step_times.predict import mean_step_s
from experiments.validation.step_times.record import Measured

MEASURED_S = 3.0
LOSSY_S = 60.0
"""Where packets are lost. Windows remember losses for many seconds: of local SGD by 2 workers over
wan, 8 steps took 1.3 to 3.4 s in turn, and 20 s of them by chance a third less than two minutes.
"""


def measure(cells: Sequence[Cell], seconds: float = MEASURED_S) -> Iterator[Measured]:
    """Measure every cell.

    Args:
        cells: neighbours of one algorithm, model and number of workers share a rehearsal.
        seconds: that every rehearsal and every measurement lasts at least; under loss a measurement
            lasts for so many times longer as `LOSSY_S` is more than `MEASURED_S`.
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
                expected_s = mean_step_s(step_ends_s(clocks.script, make_timeline(plan, profile)))
                has_loss = any(link.loss_pct for link in plan.net.all_links(plan.workers))
                lasts_s = seconds * LOSSY_S / MEASURED_S if has_loss else seconds
                backend, step_s = _measure(plan, data, _enough_steps(expected_s, lasts_s))
                yield Measured(
                    cell=cell,
                    backend=backend,
                    step_s=step_s,
                    profile=profile,
                    script=clocks.script,
                )


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
