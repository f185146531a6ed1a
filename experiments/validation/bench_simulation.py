"""What simulated workers cost: `python -m experiments.bench_simulation`.

Steps of stacked workers against as many in a loop, on all cores, in turn; and the memory of many
workers of the default CNN, each count in a process of its own. It prints, and never judges.
"""

import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.simulated.kept_memory import kept_memory
from experiments.tasks.base import TaskData
from experiments.training.step import make_step
from host.words import counted

MODEL, WORKERS, BATCH_SIZE = "mlp", 64, 8
NUM_STEPS = 5


def stepper(plan: Plan, data: TaskData, *, in_a_loop: bool) -> Callable[[int], object]:
    """Takes a step of all-reduce of all workers of `plan`."""
    communicator = StackedCommunicator(plan.workers)
    model = StackedModel(plan.model, plan.workers, in_a_loop=in_a_loop)
    optimizer = plan.make_optimizer(model.parameters())
    take_step = make_step(plan, data.train, model, optimizer, communicator)
    batches = plan.batches(data, communicator.ranks)
    return lambda step: take_step(batches.indices(step))


def plan_of(model: str, workers: int, batch_size: int) -> Plan:
    """Simulated workers by all-reduce."""
    words = ["algo=allreduce", "backend=sim", f"model={model}", f"workers={workers}"]
    return make_plan(compose_config([*words, f"batch_size={batch_size}"]), Path())


@kept_memory()
def compare_with_a_loop(repeats: int) -> None:
    """Prints seconds a step of both, and their ratio round by round."""
    torch.set_num_threads(os.cpu_count() or 1)
    plan = plan_of(MODEL, WORKERS, BATCH_SIZE)
    data = plan.task.load()
    ways = [stepper(plan, data, in_a_loop=in_a_loop) for in_a_loop in (False, True)]
    seconds: list[list[float]] = []
    for repeat in range(repeats + 1):
        took = []
        for take in ways:
            started_s = time.perf_counter()
            for step in range(NUM_STEPS):
                take(repeat * NUM_STEPS + step)
            took.append((time.perf_counter() - started_s) / NUM_STEPS)
        if repeat:  # the first round warms up
            seconds.append(took)
    ratios = [loop_s / stacked_s for stacked_s, loop_s in seconds]
    stacked_ms, loop_ms = (1e3 * statistics.median(column) for column in zip(*seconds, strict=True))
    print(
        f"{WORKERS} workers, {MODEL}, batch {BATCH_SIZE}: {stacked_ms:.0f} ms a step stacked, "
        f"{loop_ms:.0f} in a loop; {statistics.median(ratios):.1f} x faster "
        f"({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} rounds)"
    )


@kept_memory()
def print_memory(model: str, workers: int) -> None:
    """Trains a few steps, and prints the largest memory that this process had."""
    torch.set_num_threads(os.cpu_count() or 1)
    plan = plan_of(model, workers, batch_size=8)
    take = stepper(plan, plan.task.load(), in_a_loop=False)
    for step in range(NUM_STEPS):
        take(step)
    # Not by getrusage, whose peak a process takes over from the one that has started it.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    peak_gb = int(peak) * 1024 / 1e9
    print(f"{counted(workers, 'worker')}, {model}, batch 8: at most {peak_gb:.2f} GB of memory")
