"""One table and one plot for any set of runs.

python -m experiments.compare results/runs [--out figures]
"""

import argparse

from experiments.report.compare import compare
from host import commands


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare", description="One table and one plot for many runs."
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of runs, or one run's")
    parser.add_argument("--out", help="the folder for accuracy.png and .svg; by default DIR")
    arguments = parser.parse_args()
    compare(arguments.dir, arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
