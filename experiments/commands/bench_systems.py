"""What BAGUA's systems beside its algorithms save: `python -m experiments.bench_systems`."""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.validation import bench_balanced, bench_cache
from host import commands
from host.environment import environment
from host.words import counted


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench_systems", description=__doc__
    )
    parser.add_argument("systems", nargs="*", help=f"of {', '.join(SYSTEMS)} (default all)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--experiment", default="spoken_digits", help="of balanced")
    parser.add_argument("--steps", type=int, help="of balanced; by default the experiment's own")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"there is no system {unknown.pop()}: choose of {', '.join(SYSTEMS)}")
    for name in arguments.systems or SYSTEMS:
        SYSTEMS[name](arguments)
    return 0


def balanced(arguments: argparse.Namespace) -> None:
    """Whole runs of 4 workers, in turn."""
    words = [f"experiment={arguments.experiment}"]
    words += [] if arguments.steps is None else [f"max_steps={arguments.steps}"]
    measured = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(arguments.repeats), "interleaved runs"):
            for number, (case, overrides) in enumerate(bench_balanced.CASES.items()):
                run = Path(folder) / f"{repeat}_{number}"
                own = [*words, *overrides, f"seed={repeat}"]
                measured[case].append(bench_balanced.measure(own, run))
    print_rows(f"balanced loading: 4 workers, {' '.join(words)}", bench_balanced.rows(measured))


def cache(arguments: argparse.Namespace) -> None:
    """Epochs over slow examples, then entries, the stores in turn."""
    rows = defaultdict(list)
    with bench_cache.stores() as makers:
        for repeat in track(range(arguments.repeats), "interleaved epochs"):
            for name, make in {"no cache": lambda: None, **makers}.items():
                times_s = bench_cache.epochs_s(make(), f"{name} {repeat}")
                for epoch, seconds in enumerate(times_s, 1):
                    rows[f"{name}: s, epoch {epoch}"].append(seconds)
                rows[f"{name}: epoch 1 / epoch 2"].append(times_s[0] / times_s[1])
        for _ in track(range(arguments.repeats), "interleaved entries"):
            for num_bytes in bench_cache.ENTRY_BYTES:
                for name, make in makers.items():
                    write_us, read_us = bench_cache.entry_us(make(), num_bytes)
                    rows[f"{name}: us to write {num_bytes} bytes"].append(write_us)
                    rows[f"{name}: us to read {num_bytes} bytes"].append(read_us)
    title = "cached data set: 2,000 examples of 5 ms, 4 processes"
    print_rows(title, dict(sorted(rows.items())))


def print_rows(title: str, rows: dict[str, list[float]]) -> None:
    """Median, least and greatest of all rounds."""
    host = environment()
    table = Table(
        title=title,
        caption=f"{host['cpu']}, {counted(host['cores'], 'core')}, Linux {host['kernel']}, "
        f"torch {host['packages']['torch']}, {counted(len(next(iter(rows.values()))), 'round')}",
    )
    for heading in ("", "median", "min", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in rows.items():
        table.add_row(name, *_spread(values))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _spread(values: Sequence[float]) -> list[str]:
    return [f"{f(values):.3g}" for f in (statistics.median, min, max)]


SYSTEMS = {"balanced": balanced, "cache": cache}


if __name__ == "__main__":
    commands.run(main)
