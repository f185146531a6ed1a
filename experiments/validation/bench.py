"""How fast the app is on this machine: `python -m experiments.bench [--repeats 5] [--net none]`.

Whole runs of 4 workers, in turn: ours, ours with one communication lane instead of two, PyTorch's,
ours, ... Prints medians with their spread, and ratios round by round; it never judges.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.engine.algorithm import Context
from experiments.runs.summary import read_fields
from experiments.validation.rounds import print_rounds

NUM_STEPS = 300
LIMIT_S = 300


class OneLane(AllReduce):
    """An algorithm that acts in `on_forward` has one lane for all buckets."""

    def on_forward(self, context: Context) -> None:
        """Nothing."""


OURS, THEIRS = "all-reduce", "torch DDP"
CASES = {
    OURS: ["algo=allreduce"],
    "all-reduce, one lane": [
        "algo=allreduce",
        f"algo._target_=experiments.validation.bench.{OneLane.__name__}",
    ],
    THEIRS: ["algo=torch_ddp"],
}
"""What is measured, and its overrides."""


def measure(overrides: Sequence[str], folder: Path) -> tuple[float, float]:
    """Steps per second, and seconds from the command to the end of the first training step."""
    command = [
        *(sys.executable, "-m", "experiments", *overrides, "workers=4"),
        *(f"max_steps={NUM_STEPS}", f"eval_every={NUM_STEPS}", f"hydra.run.dir={folder}"),
    ]
    started_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        journal = folder / "metrics.jsonl"
        while (
            not journal.exists() and run.poll() is None and time.monotonic() < started_s + LIMIT_S
        ):
            time.sleep(0.01)
        first_step_s = time.monotonic() - started_s
        output, _ = run.communicate(timeout=LIMIT_S)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output.decode()}")
    return read_fields(folder)["steps_per_s"], first_step_s


def print_table(measured: dict[str, list[tuple[float, float]]], net: str) -> None:
    """The figures of all rounds: median, least and greatest."""
    step_ms = {case: [1e3 / speed for speed, _ in runs] for case, runs in measured.items()}
    rows = {f"ms a step, {case}": values for case, values in step_ms.items()}
    for case in [case for case in CASES if case != THEIRS]:
        pairs = zip(step_ms[case], step_ms[THEIRS], strict=True)
        rows[f"{case} / {THEIRS}, round by round"] = [ours / theirs for ours, theirs in pairs]
    for case in (OURS, THEIRS):
        rows[f"s from command to first step, {case}"] = [s for _, s in measured[case]]
    print_rounds(f"4 workers, net={net}, mnist5k, cnn", rows)
