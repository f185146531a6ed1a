"""How fast the app is on this machine: `python -m experiments.bench [--repeats 5]`.

Whole runs of 4 workers over unshaped links, in turn: ours, PyTorch's, ours, PyTorch's, ... Prints
medians with their spread, and the ratio pair by pair; it never judges.
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

from experiments.environment import environment
from experiments.words import counted
from kernels import commands

NUM_STEPS = 300
LIMIT_S = 300


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs (default 5)")
    repeats = parser.parse_args().repeats
    if repeats < 1:
        parser.error(f"--repeats must be at least 1, got {repeats}")
    algorithms = ("allreduce", "torch_ddp")
    measured: dict[str, list[tuple[float, float]]] = {algorithm: [] for algorithm in algorithms}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(repeats), "interleaved pairs of runs"):
            for algorithm in algorithms:
                run = _measure(algorithm, Path(folder) / f"{algorithm}{repeat}")
                measured[algorithm].append(run)
    _print(measured)
    return 0


def _measure(algorithm: str, folder: Path) -> tuple[float, float]:
    """Steps per second, and seconds from the command to the end of the first training step."""
    command = [
        *(sys.executable, "-m", "experiments", f"algo={algorithm}", "net=none", "workers=4"),
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


def _print(measured: dict[str, list[tuple[float, float]]]) -> None:
    speeds = {name: [speed for speed, _ in runs] for name, runs in measured.items()}
    ours, theirs = speeds["allreduce"], speeds["torch_ddp"]
    rows = {
        "steps/s, all-reduce": ours,
        "steps/s, torch DDP": theirs,
        "ratio, pair by pair": [a / b for a, b in zip(ours, theirs, strict=True)],
        "s from command to first step, all-reduce": [s for _, s in measured["allreduce"]],
        "s from command to first step, torch DDP": [s for _, s in measured["torch_ddp"]],
    }
    host = environment()
    table = Table(
        title="4 workers, unshaped, mnist5k, cnn",
        caption=f"{host['cpu']}, {counted(host['cores'], 'core')}, Linux {host['kernel']}, "
        f"torch {host['packages']['torch']}, {len(ours)} interleaved pairs",
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
