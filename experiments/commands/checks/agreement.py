"""Tests whether real and simulated workers need equally many steps to a target.

python -m experiments.agreement targets RUNS --out FILE                 of other seeds, simulated
python -m experiments.agreement steps RUNS --targets FILE --out FILE    the page, of runs of both
"""

import argparse
from pathlib import Path

from experiments.runs.load import check_runs
from host import commands
from host.command_line.parser import Parser
from host.output import check_folder, writing

STUDY = (
    Path("results/runs/real_and_simulated"),
    Path("results/real_and_simulated/README.md"),
)
"""The runs of the study of that name, and the page that git keeps of them."""


def main() -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.agreement"),
        description=commands.as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    of_command = parser.add_subparsers(dest="command", required=True)
    for name in ("targets", "steps"):
        own = of_command.add_parser(name)
        own.add_argument("runs", type=Path, metavar="RUNS", help="a folder of runs")
        own.add_argument("--out", type=Path, required=True, help="the file to write")
        if name == "steps":
            own.add_argument(
                "--targets", type=Path, required=True, help="the file that `targets` wrote"
            )
    arguments = parser.parse_args()
    check_folder(arguments.out.parent)
    check_runs(arguments.runs)
    with commands.importing():  # seconds, once the command line was read
        from experiments.validation.agreement import pairs
        from experiments.validation.agreement.page import page
    with writing(arguments.out):
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        if arguments.command == "targets":
            pairs.save_targets(pairs.rule_targets(arguments.runs), arguments.out)
        else:
            targets = pairs.load_targets(arguments.targets)
            command = (
                f"python -m experiments.agreement steps {arguments.runs} --targets "
                f"{arguments.targets} --out {arguments.out}"
            )
            is_study = (arguments.runs, arguments.out) == STUDY
            compared = pairs.compare(arguments.runs, targets)
            arguments.out.write_text(page(compared, command, is_study))
    print(arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
