"""What simulated workers cost: `python -m experiments.bench_simulation`."""

import argparse
import subprocess
import sys

from experiments.validation.bench_simulation import compare_with_a_loop, print_memory
from host import commands


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench_simulation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument(
        "--memory", type=int, metavar="WORKERS", help="only print the memory of these"
    )
    arguments = parser.parse_args()
    if arguments.memory is not None:
        print_memory("cnn", arguments.memory)
        return 0
    compare_with_a_loop(arguments.repeats)
    for workers in (32, 128):
        command = [
            sys.executable,
            "-m",
            "experiments.bench_simulation",
            "--memory",
            str(workers),
        ]
        subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    commands.run(main)
