"""How fast the app is on this machine: `python -m experiments.bench [--repeats 5] [--net none]`.

Whole runs of 4 workers, in turn: ours, ours with one communication lane instead of two, PyTorch's,
ours, ... Prints medians with their spread, and ratios round by round; it never judges.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bagua_algos.algorithm import Context
from bagua_algos.algorithms.all_reduce import AllReduce
from experiments.environment import environment
from experiments.messages import choices
from experiments.words import counted
from kernels import commands

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
        f"algo._target_=experiments.bench.{OneLane.__name__}",
    ],
    THEIRS: ["algo=torch_ddp"],
}
"""What is measured, and its overrides."""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of runs (default 5)")
    parser.add_argument("--net", default="none", choices=choices("net"), help="(default none)")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    measured: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(arguments.repeats), "interleaved runs"):
            for number, (case, overrides) in enumerate(CASES.items()):
                run = Path(folder) / f"{repeat}_{number}"
                measured[case].append(_measure([*overrides, f"net={arguments.net}"], run))
    _print(measured, arguments.net)
    return 0


def _measure(overrides: Sequence[str], folder: Path) -> tuple[float, float]:
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
    summary = json.loads((folder / "summary.json").read_text())
    return summary["steps_per_s"], first_step_s


def _print(measured: dict[str, list[tuple[float, float]]], net: str) -> None:
    step_ms = {case: [1e3 / speed for speed, _ in runs] for case, runs in measured.items()}
    rows = {f"ms a step, {case}": values for case, values in step_ms.items()}
    for case in [case for case in CASES if case != THEIRS]:
        pairs = zip(step_ms[case], step_ms[THEIRS], strict=True)
        rows[f"{case} / {THEIRS}, round by round"] = [ours / theirs for ours, theirs in pairs]
    for case in (OURS, THEIRS):
        rows[f"s from command to first step, {case}"] = [s for _, s in measured[case]]
    host = environment()
    table = Table(
        title=f"4 workers, net={net}, mnist5k, cnn",
        caption=f"{host['cpu']}, {counted(host['cores'], 'core')}, Linux {host['kernel']}, "
        f"torch {host['packages']['torch']}, {counted(len(measured[OURS]), 'round')}",
    )
    for heading in ("", "median", "min", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in rows.items():
        table.add_row(name, *_spread(values))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _spread(values: Sequence[float]) -> list[str]:
    return [f"{f(values):.3g}" for f in (statistics.median, min, max)]


if __name__ == "__main__":
    commands.run(main)
