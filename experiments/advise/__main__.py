"""Ranks algorithms by their time to the accuracy, on this task, network and number of workers.

python -m experiments.advise task=fashion_mnist net=slow_tcp workers=16 [algo=glob(*)] [--seeds 3]

Every algorithm is trained once per seed on simulated workers. That training serves all networks;
add networks with --on. With --verify N, real workers here run the first N choices, too.
"""

# What trains takes seconds to import. It is imported once the command line was looked at.

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.advise.arguments import prediction_parser
from experiments.advise.choice import check_choice, read_choice, read_network
from host import commands
from host.command_line.parser import Parser
from host.environment import environment
from host.errors import UserError
from host.output import check_folder, writing
from host.words import counted

if TYPE_CHECKING:
    from experiments.advise.advice import Advice


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    arguments = _parser().parse_intermixed_args()
    if arguments.verify < 0:
        raise UserError(f"--verify must be at least 0, got {arguments.verify}")
    if arguments.out is not None:
        check_folder(arguments.out)
    choice = read_choice(arguments.overrides, arguments.seeds)
    named = [text.split() for text in arguments.on]
    if named and choice.net:
        named = [choice.net, *named]
    networks = [read_network(words) for words in named]
    if networks:
        choice = choice.over(named[0])
    check_choice(choice)
    with commands.importing():
        from experiments.advise.advise import advise
    given, notes = advise(
        choice,
        networks,
        num_seeds=arguments.seeds,
        num_verified=arguments.verify,
    )
    print("\n".join(notes))
    if arguments.out is not None:
        _write(arguments.out, given, notes)
    return 0


def _write(out: Path, given: Sequence[Advice], notes: Sequence[str]) -> None:
    """The page advice.md."""
    host = environment()
    command = shlex.join(["python", "-m", "experiments.advise", *sys.argv[1:]])
    head = [
        "# Advice",
        "",
        f"`{command}`, {counted(host['cores'], 'core')} ({host['cpu']}), "
        f"torch {host['packages']['torch']}.",
        "",
    ]
    lines = [*head, *(advice.markdown() for advice in given), *(f"- {note}" for note in notes)]
    with writing(out):
        (out / "advice.md").write_text("\n".join(lines) + "\n")


def _parser() -> Parser:
    parser = prediction_parser("advise", __doc__ or "")
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="NET",
        help="a network, as --on net=lan_1g or --on 'net.rate_mbit=30 net.delay_ms=5'; repeatable",
    )
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run the first N choices for real, here"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder for advice.md")
    return parser


if __name__ == "__main__":
    commands.run(main)
