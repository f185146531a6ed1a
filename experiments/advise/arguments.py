"""The command lines of `experiments.advise` and `experiments.surface`."""

from experiments.plan.schema import KEYS
from host import commands
from host.command_line.parser import Parser


def prediction_parser(program: str, description: str) -> Parser:
    """What all of them take; parse it by `parse_intermixed_args`."""
    parser = Parser(
        prog=commands.program(f"experiments.{program}"),
        description=description.split("\n")[0],
        epilog="Trainings take most of the time: restrict algo=..., --seeds or max_steps=...",
    )
    parser.keys = KEYS
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
