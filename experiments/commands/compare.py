"""Makes one table and one plot for any set of runs.

python -m experiments.compare results/runs [--out figures]
"""

# What draws takes seconds to import. It is imported once the command line was looked at.

from experiments.runs.load import check_runs
from host import commands
from host.command_line.parser import Parser


def main() -> int:
    """The command line."""
    parser = Parser(
        prog=commands.program("experiments.compare"),
        description="Makes one table and one plot for many runs.",
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of runs, or one run's")
    parser.add_argument("--out", help="the folder for accuracy.png and .svg; by default DIR")
    arguments = parser.parse_args()
    check_runs(arguments.dir)
    with commands.importing():
        from experiments.report.compare import compare
    compare(arguments.dir, arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
