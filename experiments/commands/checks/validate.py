"""Compares simulated time with measured time.

python -m experiments.validate --out results/validation     measures, in some 40 minutes
python -m experiments.validate --again                      predicts what was measured, anew
python -m experiments.validate --out results/validation --only net=none streams=1
                                                            measures these cells again
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from host import commands, conf
from host.command_line.parser import Parser
from host.errors import UserError
from host.output import check_folder

if TYPE_CHECKING:
    from experiments.validation.step_times.record import Record

MEASURED = "time.jsonl"


def main() -> int:
    """The command line."""
    arguments = _arguments()
    if arguments.out:
        check_folder(arguments.out)
    with commands.importing():  # seconds, once the command line was read
        from experiments.validation.step_times.page import markdown, plot, summary
        from experiments.validation.step_times.predict import predict
        from experiments.validation.step_times.record import Record
    record = Record.load(arguments.again) if arguments.again else _measure(arguments)
    rows = predict(record)
    print(summary(rows))
    if arguments.out:
        rows.to_csv(arguments.out / "time.csv", index=False, float_format="%.5g")
        (arguments.out / "time.md").write_text(markdown(rows, record))
        plot(rows, arguments.out)
    return 0


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog=commands.program("experiments.validate"),
        description=commands.as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, help=f"the folder for time.md, .csv and .png, and {MEASURED}"
    )
    parser.add_argument("--ci", action="store_true", help="three cells only")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help=f"cells with all of these values, in place of what {MEASURED} in --out has of them",
    )
    parser.add_argument(
        "--beside", default="", help="what else the machine does meanwhile, for the page"
    )
    parser.add_argument(
        "--again",
        nargs="?",
        type=Path,
        const=conf.PACKAGED.parent / "results/validation" / MEASURED,
        metavar="FILE",
        help="measure nothing: what was measured, by default for results/validation",
    )
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> "Record":
    """The record of all cells, which stands in the folder `--out` after each one measured."""
    from rich.progress import Progress

    from experiments.validation.step_times.grid import CI_GRID, GRID, only
    from experiments.validation.step_times.measure import measure
    from experiments.validation.step_times.record import Record, this_machine
    from host.command_line.console import Console

    machine = this_machine(arguments.beside)
    cells = only(arguments.only, CI_GRID if arguments.ci else GRID)
    if arguments.only and not arguments.out:
        raise UserError("--only replaces cells of a record: give its folder by --out")
    before = Record.load(arguments.out / MEASURED) if arguments.only else None
    record = before or Record(machine=machine, cells=[])
    with Progress(console=Console(stderr=True)) as progress:
        for measured in progress.track(measure(cells), total=len(cells)):
            if before is None:
                record.cells.append(measured)
            else:
                record = record.with_again(measured, machine)
            print(*measured.cell, f"{1e3 * measured.step_s:.4g} ms")
            if arguments.out:
                record.save(arguments.out / MEASURED)
    return record


if __name__ == "__main__":
    commands.run(main)
