"""Shapes a network and proves it, or runs a program of one's own in it.

    python -m netsim probe net=wan workers=4
    python -m netsim serve net=slow_tcp workers=4 net.delay_ms=20 -- COMMAND...
    python -m netsim validate --out results/validation/network.md
    python -m netsim calibrate --out results/validation/gloo.yaml
    python -m netsim serve net=slow_tcp -- torchrun --nproc-per-node 4 examples/train.py

`serve` starts COMMAND once per worker, in that worker's namespace; see `serve.serve`. The exit
code is the command's, and 2 where the network is refused.
"""

# What shapes and measures takes half a second to import. It is imported once the words were read.

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from host import commands
from host.processes import fork, kill
from netsim.conditions.command_line import read_words
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import why_unmeasured
from netsim.errors import NamespaceError, ProbeError

if TYPE_CHECKING:
    from netsim.proof.one_connection import ConnectionReport
    from netsim.proof.proof import LinkReport

_USAGE = (
    "usage: python -m netsim probe|serve net=NAME [workers=N] [net.KEY=VALUE...] [-- COMMAND...]"
)
_HELP = {"--help", "-h"}
_REFUSED = 2


def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _run(arguments)
    except (NamespaceError, ProbeError, ValueError) as error:
        print(f"netsim: {commands.as_called(str(error))}", file=sys.stderr)
        return _REFUSED


def _run(arguments: list[str]) -> int:
    own, command = arguments, []
    if "--" in arguments:
        end = arguments.index("--")
        own, command = arguments[:end], arguments[end + 1 :]
    if _HELP & set(own) and own[0] not in ("calibrate", "collectives"):  # which say it themselves
        print(commands.as_called(__doc__))
        return 0
    if len(arguments) == 3 and arguments[:2] == ["validate", "--out"]:
        from netsim.validation.network_table import validate

        return validate(Path(arguments[2]))
    if arguments[:1] == ["calibrate"]:
        from netsim.validation.calibrate import main as calibrate

        return calibrate(arguments[1:])
    if arguments[:1] == ["collectives"]:
        raise ValueError(
            "The collectives are those of bagua_algos, of which netsim knows nothing: "
            f"python -m experiments.{' '.join(arguments)}"
        )
    if not own or own[0] not in ("probe", "serve"):
        raise ValueError(_USAGE)
    if bool(command) != (own[0] == "serve"):
        raise ValueError("serve takes a command after --, and probe takes none.")
    with commands.importing():  # what reads YAML; nothing has been made that would have to go
        condition, num_workers, name = parse(own[1:])
    if unmeasured := why_unmeasured(name):
        print(f"netsim: {unmeasured}", file=sys.stderr)
    if own[0] == "probe":
        return _probe(condition, num_workers)
    from netsim.serve import serve

    return _in_child(lambda: serve(condition, num_workers, command))


def parse(words: list[str], command: str = "netsim") -> tuple[NetworkCondition, int, str]:
    """The condition, the number of workers and the network's name that `net=`, `net.KEY=` and
    `workers=` give to `command`, a module.

    Raises:
        ValueError: for any other word, or a value that is wrong.
    """
    condition, values = read_words(words, {"workers": "4"}, command=command)
    if not values["workers"].isdecimal() or int(values["workers"]) < 1:
        raise ValueError(f"workers has to be a number from 1 up, not {values['workers']!r}.")
    return condition, int(values["workers"]), values["net"]


def _probe(condition: NetworkCondition, num_workers: int) -> int:
    with commands.importing():
        from netsim.proof import proof
        from netsim.proof.temporary_network import probe_network

    report = probe_network(condition, num_workers)
    print(f"back end: {report.backend}")
    for link in report.links:
        print(describe(link))
    if report.connection is not None:
        print(describe_connection(report.connection))
    for rank, tcp in enumerate(report.tcp[:1]):
        settings = ", ".join(f"{name}={value}" for name, value in tcp.items())
        print(f"TCP of worker {rank}: {settings}")
    proof.check(condition, report.links)
    return 0


def describe(link: LinkReport) -> str:
    """A link's numbers on one line: asked against achieved."""
    asked = "no limit" if link.asked_rate_mbit is None else f"{link.asked_rate_mbit:g}"
    achieved = link.achieved_rate_mbit
    rate = "not measured, the host was busy" if achieved is None else f"{achieved:.1f} Mbit/s"
    words = [
        f"worker {link.sender} -> {link.receiver}:",
        f"rate {asked} / {rate},",
        f"round trip {link.asked_rtt_ms:g} / {link.achieved_rtt_ms:.2f} ms",
    ]
    if link.achieved_loss_pct is not None:
        lost = f"({link.num_lost} of {link.num_sent})"
        words[-1] += ","
        words.append(f"loss {link.asked_loss_pct:.3g} / {link.achieved_loss_pct:.3g} % {lost}")
    return " ".join(words)


def describe_connection(connection: ConnectionReport) -> str:
    """What one TCP connection carries, on one line: measured, and by theory."""
    from netsim.proof.one_connection import RECEIVER, SENDER

    theory = connection.theory_mbit
    return (
        f"one TCP connection, worker {SENDER} -> {RECEIVER}: {connection.measured_mbit:.1f} Mbit/s "
        f"of data in {connection.seconds:g} s, "
        f"{'no limit' if theory is None else f'{theory:.1f}'} by theory"
    )


def _in_child(run: Callable[[], int]) -> int:
    """The exit code of a child that becomes the hub; it is gone when this returns."""

    def child() -> int:
        try:
            return run()
        except (NamespaceError, ProbeError, ValueError) as error:
            print(f"netsim: {error}", file=sys.stderr)
            return _REFUSED

    pid = fork(child)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        with suppress(ProcessLookupError):
            kill(pid)
        raise


if __name__ == "__main__":
    commands.run(lambda: main(sys.argv[1:]))
