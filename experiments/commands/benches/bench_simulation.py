"""Measures what simulated workers cost: `python -m experiments.bench_simulation`."""

import subprocess
import sys

from host import commands
from host.command_line.parser import Parser


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.bench_simulation"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument(
        "--memory", type=int, metavar="WORKERS", help="only print the memory of these"
    )
    parser.add_argument(
        "--batch-size", type=int, default=8, help="of each of these workers (default 8)"
    )
    parser.add_argument(
        "--counted",
        action="store_true",
        help="only print the memory of runs beside what is counted",
    )
    parser.add_argument(
        "--compiled", action="store_true", help="only time torch.compile and bfloat16"
    )
    parser.add_argument("--advise", action="store_true", help="only time experiments.advise")
    parser.add_argument("words", nargs="*", help="such as model=minilm, for --memory and --advise")
    arguments = parser.parse_args()
    with commands.importing():  # seconds, once the command line was read
        from experiments.validation.bench_compiled import compare_compiled
        from experiments.validation.bench_memory import print_counted
        from experiments.validation.bench_simulation import (
            CASES,
            compare_ways,
            print_memory,
            time_advice,
        )
    words = tuple(arguments.words)
    if arguments.memory is not None:
        print_memory(words or ("model=cnn",), arguments.memory, arguments.batch_size)
    elif arguments.counted:
        print_counted()
    elif arguments.compiled:
        for case in CASES:
            compare_compiled(case, arguments.repeats)
    elif arguments.advise:
        time_advice(words)
    else:
        for case in CASES:
            compare_ways(case, arguments.repeats)
        for workers in (32, 128):
            own = [sys.executable, "-m", "experiments.bench_simulation"]
            subprocess.run([*own, "--memory", str(workers)], check=True)
    return 0


if __name__ == "__main__":
    commands.run(main)
