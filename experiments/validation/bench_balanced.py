"""What balanced batches save: `python -m experiments.bench_systems balanced`.

Whole runs of 4 real workers on examples of unequal length, in turn: shuffled batches as they are by
default, all padded to the longest example of the data set; shuffled batches that are cut to their
own longest; balanced ones. Each round has a seed of its own. It prints medians with their spread
and ratios round by round, and never judges.

`python -m experiments.bench_systems lengths` takes the steps of one of these workers in turn, and
counts its processor time: so others on the host count little.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.summary import read_fields
from experiments.training.step import make_step

WORKERS = 4

WHOLE, CUT, BALANCED = "shuffled", "shuffled, cut", "balanced"
CASES = {
    WHOLE: ["data.sampler=shuffled"],
    CUT: ["data.sampler=shuffled", "data.sampler.crop=true"],
    BALANCED: ["data.sampler=balanced"],
}
"""What is measured, and its overrides."""


def measure(overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """One run: ms a step, and of them waiting; seconds to the target, inf for a miss; accuracy."""
    command = [
        *(sys.executable, "-m", "experiments", "algo=allreduce", "net=none", f"workers={WORKERS}"),
        *(*overrides, f"hydra.run.dir={folder}"),
    ]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}")
    summary: dict[str, Any] = read_fields(folder)
    reached_s = summary["time_to_accuracy_s"]
    return {
        "ms a step": 1e3 / summary["steps_per_s"],
        "ms a step waiting": 1e3 * summary["exposed_communication_s"] / summary["steps"],
        "s to accuracy": math.inf if reached_s is None else reached_s,
        "test accuracy": summary["final_accuracy"],
    }


def rows(measured: dict[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    """The figures of all rounds, by the name of a row."""
    found = {
        f"{figure}, {case}": [run[figure] for run in runs]
        for figure in measured[CUT][0]
        for case, runs in measured.items()
    }
    for case in (WHOLE, CUT):
        for figure in ("ms a step", "s to accuracy"):
            pairs = zip(measured[case], measured[BALANCED], strict=True)
            found[f"{figure}, {case} / {BALANCED}, round by round"] = [
                other[figure] / own[figure] for other, own in pairs
            ]
    return found


@contextmanager
def steppers(words: Sequence[str]) -> Iterator[dict[str, Callable[[int], float]]]:
    """For each case, a function that takes worker 0's step of a number, counted from 0, without the
    others, and returns the milliseconds of processor time: all but communication.
    """
    with ExitStack() as stack:
        yield {case: stack.enter_context(_stepper([*words, *own])) for case, own in CASES.items()}


@contextmanager
def _stepper(words: Sequence[str]) -> Iterator[Callable[[int], float]]:
    plan = make_plan(compose_config(["algo=allreduce", f"workers={WORKERS}", *words]), Path())
    data = plan.load_data()
    batches = plan.batches(data, (0,))
    model = SingleModel(plan.model)
    optimizer = plan.make_optimizer(model.parameters())
    step = make_step(plan, data.train, model, optimizer, LoopbackCommunicator(WORKERS))

    def take(number: int) -> float:
        started_s = time.thread_time()
        step(batches.indices(number))
        return 1e3 * (time.thread_time() - started_s)

    try:
        yield take
    finally:
        step.distributed.close()


def length_rows(took_ms: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Milliseconds a step by case, and each other case's mean over that of balanced batches."""
    mean = {case: sum(own) / len(own) for case, own in took_ms.items()}
    return {f"ms a step, {case}": list(own) for case, own in took_ms.items()} | {
        f"mean, {case} / {BALANCED}": [mean[case] / mean[BALANCED]] for case in (WHOLE, CUT)
    }
