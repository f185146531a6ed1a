"""Measures all-reduces of real workers over a network: by pattern, size and number of streams.

python -m experiments.collectives net=wan workers=8 [net.KEY=VALUE...] [--repeats 5]

A cell has milliseconds on the slowest worker:
measured: the median (least to most);
~: what the cost model of simulated workers predicts of all-reduces repeated without a pause;
theory: the steps' delays plus the bytes over the rate (open windows, no loss).
"""

import argparse

from host import commands
from host.command_line.parser import Parser
from host.errors import UserError
from netsim.__main__ import parse
from netsim.errors import NamespaceError


def main() -> int:
    """Measure and print; returns the exit code."""
    commands.raise_at_sigterm()
    parser = Parser(
        prog=commands.program("experiments.collectives"),
        description=commands.as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="net=NAME workers=N")
    parser.add_argument("--repeats", type=int, default=5, help="of each case (default 5)")
    arguments = parser.parse_intermixed_args()
    if arguments.repeats < 1:
        raise UserError(f"--repeats must be at least 1, got {arguments.repeats}")
    try:
        condition, num_workers, _ = parse(arguments.words, "experiments.collectives")
        if num_workers < 2:
            raise UserError(f"workers must be at least 2, got {num_workers}")
        with commands.importing():  # seconds, once the command line was read
            from experiments.validation.collectives import SIZES, measure, summary, table
        backend, timed = measure(condition, num_workers, SIZES, num_repeats=arguments.repeats)
    except (NamespaceError, ValueError) as error:
        raise UserError(str(error)) from error
    print(
        f"{' '.join(arguments.words)}, links by {backend}, {arguments.repeats} repeats; predicted: "
        "the steady state of repeated ones"
    )
    print(table(condition, num_workers, timed, backend))
    print(summary(condition, num_workers, timed, backend))
    return 0


if __name__ == "__main__":
    commands.run(main)
