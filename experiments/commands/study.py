"""Runs a large study part by part: `conf/study/NAME.yaml` describes it.

python -m experiments.study reference --list               its parts, and how long each took
python -m experiments.study reference trials choose        two of them; without a name, all
python -m experiments.study reference score --print        the commands, none of which is run

A part that was stopped goes on where it was by the same command.
"""

import shlex
from collections.abc import Sequence

from experiments.runs.parts import StudyPart, choose_parts
from host import commands
from host.command_line.parser import Parser
from host.commands import say
from host.errors import Failure
from host.remaining import Work, duration

PART_S = 600.0
"""Of a part that does not say how long it took."""
TOOK_WEIGHT = 1 / 4
"""Of what it says: its runs are counted alike, but one on a far network takes many times as long as
one on a near one.
"""


def run_parts(parts: Sequence[StudyPart], study: str) -> None:
    """Do all that they do, in order. Raises `Failure` at the first thing that fails."""
    work = Work()
    for part in parts:
        if part.took_s is None:
            work.expect(part.name, PART_S)
        else:
            work.expect(part.name, part.took_s, is_measured=True, weight=TOOK_WEIGHT)
    for part in parts:
        run_part(part, study, work)


def run_part(part: StudyPart, study: str, work: Work) -> None:
    """Do all that the part does, in order. Raises `Failure` at the first thing that fails."""
    say(f"part {part.name}: {_described(part)}")
    sizes = [action.size for action in part.actions]  # an action may change what others' go by
    work.begin(part.name, sizes)
    for action, size in zip(part.actions, sizes, strict=True):
        for line in action.lines():
            say(line)
        try:
            action.run()
            work.done(size, f"part {part.name}")
        except Failure as error:
            again = shlex.join(["python", "-m", "experiments.study", study, part.name])
            raise Failure(f"part {part.name} is not done, {again} goes on: {error}") from error


def _described(part: StudyPart) -> str:
    seconds = part.took_s
    took = part.took or (duration(seconds) if seconds else "")
    return part.what + (f" Took {took}." if took else "")


def _list(parts: Sequence[StudyPart]) -> None:
    for part in parts:
        print(f"{part.name:<16} {_described(part)}")


def _print(parts: Sequence[StudyPart]) -> None:
    for part in parts:
        print(f"# {part.name}: {part.what}")
        for action in part.actions:
            print("\n".join(action.lines()))


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    parser = Parser(
        prog=commands.program("experiments.study"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("study", metavar="STUDY", help="the name of a file in conf/study")
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default all, in order")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="say what the parts are")
    only.add_argument("--print", action="store_true", help="print the commands; run none")
    arguments = parser.parse_args()
    parts = choose_parts(arguments.study, arguments.parts)
    if arguments.list:
        _list(parts)
    elif arguments.print:
        _print(parts)
    else:
        run_parts(parts, arguments.study)
    return 0


if __name__ == "__main__":
    commands.run(main)
