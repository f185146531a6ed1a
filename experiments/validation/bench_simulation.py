"""What simulated workers cost: `python -m experiments.bench_simulation`.

Steps of stacked workers in each way to compute them, and of one plain model with as many examples,
in turn; and the memory of many workers, each count in a process of its own. It prints, and never
judges.
"""

import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import WAYS, Stacking, Way
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.simulated.memory.kept_memory import kept_memory
from experiments.tasks.base import TaskData
from experiments.training.step import make_step
from host.cores import THREADS, usable_cores
from host.words import counted

NUM_STEPS = 5
BEFORE = Stacking(way="vmap", threads=1)
"""How workers were computed when there was one way."""
LOOP = Stacking(way="loop", threads=1)


class Case(NamedTuple):
    """Workers whose steps are timed."""

    words: tuple[str, ...]
    workers: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.workers} workers x {self.batch_size}, {' '.join(self.words)}"


CASES = (
    Case(("model=cnn",), 64, 16),
    Case(("model=mlp",), 64, 8),
    Case(("task=jane_austen", "model=char_transformer"), 16, 8),
)
ADVICE = ("task=mnist5k", "net=slow_tcp", "workers=16", "batch_size=8")


def stepper(plan: Plan, data: TaskData, stacking: Stacking) -> Callable[[int], object]:
    """Takes a step of all-reduce of all workers of `plan`."""
    communicator = StackedCommunicator(plan.workers)
    model = StackedModel(plan.model, plan.workers, stacking=stacking)
    optimizer = plan.make_optimizer(model.parameters())
    take_step = make_step(plan, data.train, model, optimizer, communicator)
    batches = plan.batches(data, communicator.ranks)

    def step(number: int) -> None:
        torch.set_num_threads(stacking.threads)
        take_step(batches.indices(number))

    return step


def plan_of(words: tuple[str, ...], workers: int, batch_size: int) -> Plan:
    """Simulated workers by all-reduce."""
    own = ["algo=allreduce", "backend=sim", *words, f"workers={workers}"]
    return make_plan(compose_config([*own, f"batch_size={batch_size}"]), Path())


def compare_ways(case: Case, repeats: int) -> None:
    """Prints seconds a step of each way and of a plain model, and what each is against `BEFORE`,
    round by round.
    """
    threads = usable_cores()
    plan = plan_of(case.words, case.workers, case.batch_size)
    plain = plan_of(case.words, 1, case.workers * case.batch_size)
    data = plan.task.load()
    others: list[Way] = [way for way in WAYS if way != "loop"]
    stackings = [BEFORE, LOOP, *(Stacking(way=way, threads=threads) for way in others)]
    steppers = {_named(s): stepper(plan, data, s) for s in dict.fromkeys(stackings)}
    for number in sorted({1, threads}):
        name = f"one plain model, {counted(number, 'thread')}"
        steppers[name] = stepper(plain, data, Stacking(way="loop", threads=number))
    print_ratios(f"{case}: a step", timed(steppers, repeats), _named(BEFORE))


class Took(NamedTuple):
    """What a step took: seconds, and processor seconds of all threads, in which no other program
    has its time, but spinning threads have theirs (`OMP_WAIT_POLICY=PASSIVE`).
    """

    wall_s: float
    processor_s: float


def print_ratios(title: str, rounds: Sequence[Mapping[str, Took]], before: str) -> None:
    """Median milliseconds of each, by the clock and of processors, and `before` over it by the
    clock, round by round.
    """
    print(f"{title}, processor time, and {before} over it")
    for name in rounds[0]:
        wall_s, processor_s = (
            statistics.median(seconds) for seconds in zip(*(r[name] for r in rounds), strict=True)
        )
        ratios = [r[before].wall_s / r[name].wall_s for r in rounds]
        print(
            f"  {name:28} {1e3 * wall_s:7.1f} ms {1e3 * processor_s:7.1f} ms   "
            f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


@kept_memory()
def timed(steppers: Mapping[str, Callable[[int], object]], repeats: int) -> list[dict[str, Took]]:
    """What a step of each takes in every round, of which one more warms up."""
    rounds = []
    for repeat in range(repeats + 1):
        took = {}
        for name, take in steppers.items():
            started = Took(time.perf_counter(), time.process_time())
            take(repeat)
            wall_s, processor_s = time.perf_counter(), time.process_time()
            took[name] = Took(wall_s - started.wall_s, processor_s - started.processor_s)
        rounds.append(took)
    return rounds[1:]


def _named(stacking: Stacking) -> str:
    return f"{stacking.way}, {counted(stacking.threads, 'thread')}"


@kept_memory()
def print_memory(words: tuple[str, ...], workers: int, batch_size: int) -> None:
    """Trains a few steps side by side, and prints the largest memory that this process had."""
    plan = plan_of(words, workers, batch_size)
    take = stepper(plan, plan.task.load(), Stacking(way="shares", threads=usable_cores()))
    for step in range(NUM_STEPS):
        take(step)
    # Not by getrusage, whose peak a process takes over from the one that has started it.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    peak_gb = int(peak) * 1024 / 1e9
    what = f"{counted(workers, 'worker')} x {batch_size}, {' '.join(words)}"
    print(f"{what}: at most {peak_gb:.2f} GB of memory")


def time_advice(words: tuple[str, ...]) -> None:
    """Prints how long `python -m experiments.advise` takes as it did when there was one way, on one
    core, and on all.
    """
    for name, own, threads in (
        (f"{_named(BEFORE)}", ("cluster.stacking=vmap",), 1),
        ("1 core", (), 1),
        (counted(usable_cores(), "core"), (), usable_cores()),
    ):
        command = [sys.executable, "-m", "experiments.advise", *ADVICE, *words, *own]
        environment = os.environ | {THREADS: str(threads)}
        started_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        took_s = time.perf_counter() - started_s
        print(f"advise {shlex.join([*ADVICE, *words])}, {name}: {took_s:.0f} s", flush=True)
