"""How a program that predicts is called: overrides as the app has them, options with dashes."""

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType

from experiments.errors import Terminated, UserError
from experiments.launch import RunFailedError


def prediction_parser(program: str, description: str) -> argparse.ArgumentParser:
    """What all of them take; parse it by `parse_intermixed_args`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{program}",
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


def exit_code(command: Callable[[], None]) -> int:
    """Run `command`; its errors become sentences and exit codes, as the app's do: 1 a real run
    failed, 2 the user can mend it, 143 SIGTERM has stopped it.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Terminated:
        return 128 + signal.SIGTERM
    return 0


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
