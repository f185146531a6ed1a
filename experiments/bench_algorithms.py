"""What each algorithm costs a worker itself: `python -m experiments.bench_algorithms`.

One worker of 4 with an echo in place of the others (`bagua_algos.loopback`), so no network is
timed: milliseconds a step beyond plain PyTorch's, and memory beyond the model's, its gradients' and
its optimizer's. Algorithms take turns, `--repeats` times; it prints medians with their spread, and
never judges.
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from bagua_algos.engine import Engine
from bagua_algos.loopback import LoopbackCommunicator
from bagua_algos.worker_axis import SingleModel
from experiments.baselines import TorchDDP
from experiments.compose import compose_config
from experiments.config import Plan, make_plan
from experiments.environment import environment
from experiments.messages import choices
from experiments.step import Step, make_scaler, make_step
from experiments.tasks.base import TaskData
from experiments.words import counted
from kernels import commands

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
    num_bytes = sum(t.numel() * t.element_size() for t in tensors_of(engine.context.state))
    engine.close()
    return differences, num_bytes


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in a nested state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value):
        for part in fields(value):
            yield from tensors_of(getattr(value, part.name))


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
        take_step = Step(plan, data.train, plain, optimizer, make_scaler(plan))
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


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench_algorithms", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--model", default="mlp", choices=choices("model"))
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    torch.set_num_threads(1)
    plans = _plans(arguments.model)
    data = next(iter(plans.values())).task.load()
    overheads: dict[str, list[float]] = {name: [] for name in plans}
    state_bytes: dict[str, int] = {}
    for _ in track(range(arguments.repeats), "rounds", console=Console(stderr=True)):
        for name, plan in plans.items():
            differences, state_bytes[name] = measure(plan, data)
            overheads[name].append(1e3 * statistics.mean(differences))
    model_bytes = sum(4 * p.numel() for p in plans["allreduce"].model.parameters())
    _print(overheads, {name: n / model_bytes for name, n in state_bytes.items()}, arguments.model)
    return 0


def _plans(model: str) -> dict[str, Plan]:
    plans = {}
    for name in choices("algo"):
        words = [f"algo={name}", f"model={model}", f"workers={WORKERS}", "max_steps=1000"]
        config = compose_config(words)
        for key in ("warmup_steps", "start_step"):
            if key in config.algo:
                config.algo[key] = min(config.algo[key], WARM_UP_STEPS // 2)
        plan = make_plan(config, Path(tempfile.gettempdir()))
        if not isinstance(plan.algorithm, TorchDDP):
            plans[name] = plan
    return plans


def _print(overheads: dict[str, list[float]], memory: dict[str, float], model: str) -> None:
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


if __name__ == "__main__":
    commands.run(main)
