"""Measures how fast the app is here: `python -m experiments.bench [--repeats 5] [--net none]`."""

import tempfile
from pathlib import Path

from experiments.plan.messages import choices
from host import commands
from host.command_line.parser import Parser


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.bench"),
        description=commands.as_called(__doc__),
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds of runs (default 5)")
    parser.add_argument("--net", default="none", choices=choices("net"), help="(default none)")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    with commands.importing():  # seconds, once the command line was read
        from experiments.validation.bench import CASES, measure, print_table
        from host.command_line.console import track
    measured: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(arguments.repeats), "interleaved runs"):
            for number, (case, overrides) in enumerate(CASES.items()):
                run = Path(folder) / f"{repeat}_{number}"
                measured[case].append(measure([*overrides, f"net={arguments.net}"], run))
    print_table(measured, arguments.net)
    return 0


if __name__ == "__main__":
    commands.run(main)
