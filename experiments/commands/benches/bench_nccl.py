"""Measures all-reduces of two NCCL workers over a network: by its own sockets and by bagua_net.

python -m experiments.bench_nccl net=wan [net.KEY=VALUE...] [--rounds 3] [--json FILE]

Messages of 1 to 256 MiB, by one and by eight connections a channel, in interleaved rounds. A size
that is expected to take longer than --longest seconds is left out. Workers share a GPU where there
is one; if NCCL refuses that, a sentence says so.
"""

import argparse
import json
from pathlib import Path

from host import commands
from host.command_line.parser import Parser
from host.errors import Failure, UserError
from host.output import check_folder, writing
from netsim.conditions.command_line import read_words
from netsim.errors import NamespaceError, ProbeError


def main() -> int:
    """Measure, print and keep what there is after each round; returns the exit code."""
    commands.raise_at_sigterm()
    arguments = _parser().parse_intermixed_args()
    if arguments.json is not None:
        check_folder(arguments.json.parent, "--json")
    try:
        condition, values = read_words(arguments.words, {}, command="experiments.bench_nccl")
        with commands.importing():  # seconds, once the command line was read
            from experiments.validation.nccl.measure import Extent, measure
            from experiments.validation.nccl.transfers import page
            from experiments.validation.nccl.transports import nccl_transports
        extent = Extent(
            rounds=arguments.rounds, longest_s=arguments.longest, budget_s=arguments.budget
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    transports = nccl_transports()
    is_shared = transports[0].is_shared
    transfers = None
    try:
        for transfers in measure(values["net"], condition, transports, extent, is_shared=is_shared):
            if arguments.json is not None:
                with writing(arguments.json, "another --json"):
                    arguments.json.write_text(json.dumps(transfers.record()) + "\n")
    except NamespaceError as error:
        raise UserError(str(error)) from error
    except ProbeError as error:
        raise Failure(str(error)) from error
    assert transfers is not None, "there is at least one round"
    print(page(transfers))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog=commands.program("experiments.bench_nccl"),
        description=commands.as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="net=NAME")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, at most (default 3)")
    parser.add_argument(
        "--longest", type=float, default=40.0, help="seconds a size may take (default 40)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="seconds for all rounds (default: no limit)",
    )
    parser.add_argument("--json", type=Path, help="the file that keeps every figure")
    return parser


if __name__ == "__main__":
    commands.run(main)
