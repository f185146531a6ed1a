"""What each algorithm costs a worker itself: `python -m experiments.bench_algorithms`.

One worker of 4 with an echo in place of the others (`bagua_algos.communication.loopback`), so no
network is timed: milliseconds a step beyond plain PyTorch's, and memory beyond the model's, its
gradients' and its optimizer's. Algorithms take turns, `--repeats` times; it prints medians with
their spread, and never judges.
"""

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import nn

from bagua_algos.checkpoint import tensors_in
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.messages import choices
from experiments.plan.plan import Plan
from experiments.tasks.base import TaskData
from experiments.tasks.loading.reading import Reading
from experiments.training.step import Step, make_scaler, make_step
from host.command_line.console import Console
from host.environment import environment
from host.words import counted

WORKERS = 4
WARM_UP_STEPS = 24
"""Beyond the warm-up of every algorithm: what it does in the long run is measured."""
NUM_STEPS = 16


def measure(plan: Plan, data: TaskData) -> tuple[list[float], int]:
    """Seconds of plain and of distributed steps, and the bytes of the algorithm's state.

    Steps of the two take turns; the list holds the difference of each pair.
    """
    plain, ours = _stepper(plan, data, is_distributed=False), _stepper(plan, data)
    differences = []
    for step in range(WARM_UP_STEPS + NUM_STEPS):
        plain_s, ours_s = _seconds(plain[0], step), _seconds(ours[0], step)
        if step >= WARM_UP_STEPS:
            differences.append(ours_s - plain_s)
    engine = ours[1]
    assert isinstance(engine, Engine)
    engine.pause()
    num_bytes = sum(t.numel() * t.element_size() for t in tensors_in(engine.context.state))
    engine.close()
    return differences, num_bytes


def _stepper(
    plan: Plan, data: TaskData, *, is_distributed: bool = True
) -> tuple[Callable[[int], object], object]:
    communicator = LoopbackCommunicator(WORKERS)
    model = SingleModel(copy.deepcopy(plan.model))
    optimizer = plan.make_optimizer(model.parameters())
    if is_distributed:
        take_step = make_step(plan, data.train, model, optimizer, communicator)
    else:
        plain: Any = _Plain(model)
        reading = Reading(data.train, plan.seed, plan.loaders)
        take_step = Step(plan, reading, plain, optimizer, make_scaler(plan))
    batches = plan.batches(data, (0,))
    return lambda step: take_step(batches.indices(step)), take_step.distributed


class _Plain:
    """Plain training, with the one attribute that a step of one micro-batch asks for."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model


def _seconds(take_step: Callable[[int], object], step: int) -> float:
    started_s = time.perf_counter()
    take_step(step)
    return time.perf_counter() - started_s


def plans_of(model: str) -> dict[str, Plan]:
    """A plan for each algorithm of ours, early steps cut short."""
    plans = {}
    for name in choices("algo"):
        words = [f"algo={name}", f"model={model}", f"workers={WORKERS}", "max_steps=1000"]
        config = compose_config(words)
        for key in ("warmup_steps", "start_step"):
            if key in config.algo:
                config.algo[key] = min(config.algo[key], WARM_UP_STEPS // 2)
        plan = make_plan(config, Path(tempfile.gettempdir()))
        if plan.algorithm.is_simulatable:
            plans[name] = plan
    return plans


def print_table(overheads: dict[str, list[float]], memory: dict[str, float], model: str) -> None:
    """Median, least and greatest of all rounds, and the memory of the state."""
    host = environment()
    table = Table(
        title=f"an algorithm's own cost to one worker of {WORKERS}, {model}, no network",
        caption=f"{host['cpu']}, one thread and the lanes, {counted(host['cores'], 'core')}, "
        f"torch {host['packages']['torch']}, {NUM_STEPS} pairs of steps a round",
    )
    for heading in ("algorithm", "ms a step beyond plain", "min", "max", "state / model bytes"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for name in sorted(overheads, key=lambda name: statistics.median(overheads[name])):
        values = [f(overheads[name]) for f in (statistics.median, min, max)]
        table.add_row(name, *(f"{value:.2f}" for value in values), f"{memory[name]:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
