"""Simulated workers without their clocks: what a run learns, in no time."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking, Way
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.tasks.base import TaskData
from experiments.training.meter import Stop
from experiments.training.metrics import MetricsRow
from experiments.training.train import train


class StandingMeter:
    """A `Meter` that nothing moves."""

    time_s = 0.0
    bytes_sent = 0

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def standing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def stop(self, communicator: object, *, goes_on: bool) -> Stop:
        return Stop(0.0, 0.0)

    def synchronize(self, communicator: object) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        pass


def train_stacked(
    plan: Plan,
    data: TaskData,
    on_row: Callable[[MetricsRow], None],
    on_progress: Callable[[], None] = lambda: None,
    stacking: Stacking | None = None,
) -> None:
    model = StackedModel(plan.model, plan.workers, stacking=stacking or Stacking(way="vmap"))
    communicator, meter = StackedCommunicator(plan.workers), StandingMeter()
    train(plan, data, model, communicator, meter, on_row, on_progress=on_progress)


def rows_of(words: list[str], folder: Path, way: Way = "vmap") -> list[MetricsRow]:
    """The metrics of a training by the configuration of a command line."""
    folder.mkdir(exist_ok=True)
    plan = make_plan(compose_config([*words, "backend=sim"]), folder)
    rows: list[MetricsRow] = []
    threads = 2 if way in ("parts", "shares") else 1
    stacking = Stacking(way=way, threads=threads)
    torch.manual_seed(plan.seed)
    try:
        train_stacked(plan, plan.task.load(), rows.append, stacking=stacking)
    finally:
        torch.set_num_threads(1)
    return rows
