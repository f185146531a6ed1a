"""Computes how far simulated runs are off real ones.

python -m experiments.prediction_error MEASURED PREDICTED               times to accuracy
python -m experiments.prediction_error MEASURED PREDICTED --of steps    seconds a step
python -m experiments.prediction_error MEASURED PREDICTED --of first    first places

Both are folders of runs, which may be one.
"""

from pathlib import Path

from experiments.runs.load import check_runs
from host import commands
from host.command_line.parser import Parser
from host.output import check_folder

_OF = ("accuracy", "steps", "first")


def main() -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.prediction_error"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("measured", type=Path, metavar="MEASURED", help="runs of real workers")
    parser.add_argument("predicted", type=Path, metavar="PREDICTED", help="simulated runs")
    parser.add_argument("--of", choices=_OF, default="accuracy", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="the file; by default the table is printed")
    arguments = parser.parse_args()
    if arguments.out:
        check_folder(arguments.out.parent)
    for folder in (arguments.measured, arguments.predicted):
        check_runs(folder)
    with commands.importing():  # seconds, once the command line was read
        from experiments.report import tables
        from experiments.validation import prediction_error as pages
    makers = (pages.times_to_accuracy, pages.seconds_a_step, pages.first_places)
    make = dict(zip(_OF, makers, strict=True))[arguments.of]
    text = make(arguments.measured, arguments.predicted)
    if not arguments.out:
        print(text, end="")
        return 0
    tables.save({arguments.out.name: text}, arguments.out.parent)
    print(arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
