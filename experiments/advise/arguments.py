"""The command lines of `experiments.advise` and `experiments.surface`."""

import argparse

from host import commands


def prediction_parser(program: str, description: str) -> argparse.ArgumentParser:
    """What all of them take; parse it by `parse_intermixed_args`."""
    parser = argparse.ArgumentParser(
        prog=commands.program(f"experiments.{program}"),
        description=description.split("\n")[0],
        epilog="Trainings take most of the time: restrict algo=..., --seeds or max_steps=...",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="the app's: task=, model=, net=, workers=, ...; algo=a,b or algo=glob(*), the default",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="trainings of each algorithm (default 3)"
    )
    return parser
