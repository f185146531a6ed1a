"""Shows what relaxations cost in accuracy: `python -m experiments.convergence DIR --out FOLDER`.

DIR holds runs that differ in algorithm, `lr_scale` and seed. Each algorithm stands in the table at
the learning rate with the best mean validation accuracy; its accuracy is that of the test set.
"""

# What reads runs takes seconds to import. It is imported once the command line was looked at.

import shlex
from pathlib import Path

from experiments.runs.load import check_runs, load_runs
from host import commands
from host.command_line.parser import Parser
from host.output import check_folder


def main() -> int:
    """The command line."""
    parser = Parser(
        prog=commands.program("experiments.convergence"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of runs")
    parser.add_argument(
        "--out", type=Path, help="the folder for table.md; by default it is only printed"
    )
    arguments = parser.parse_args()
    if arguments.out:
        check_folder(arguments.out)
    check_runs(arguments.dir)
    with commands.importing():
        from experiments.report import tables
        from experiments.report.cells import remarks
        from experiments.report.convergence import best_rows, page
    runs = load_runs(arguments.dir)
    words = [arguments.dir, *(["--out", str(arguments.out)] if arguments.out else [])]
    command = f"{commands.program('experiments.convergence')} {shlex.join(words)}"
    text = page(runs, best_rows(runs), command)
    print(text, end="")
    print("\n".join(remarks(runs)))
    if arguments.out:
        tables.save({"table.md": text}, arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
