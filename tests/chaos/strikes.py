"""What is done to a command while it runs."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests import app, small_disk
from tests.chaos import clock
from tests.chaos.case import MIB, Case
from tests.chaos.programs import num_rows
from tests.chaos.room import Act, described, tree

ROOM_BYTES = 64 * MIB
"""Of a disk that is filled at its moment."""

LONGEST_STOP_S = 3.0
"""Of a launcher or hub, which nobody is there to wait for."""


def disk_bytes(case: Case) -> int | None:
    """Of the disk that a case works on; None: any."""
    return (case.amount or ROOM_BYTES) if case.strike == "full disk" else None


def striker(case: Case, work: Path) -> Act:
    """Does what a case says at its moment, and says to whom it was done."""
    started_s, parts = time.monotonic(), None

    def act(pid: int) -> str | None:
        nonlocal parts
        if parts is None:
            is_due = (
                time.monotonic() - started_s >= case.at_s
                if case.at_row is None
                else num_rows(work) >= case.at_row
            )
            if not is_due:
                return None
            parts = _strike(case, work, pid)
        return next(parts, None)

    return act


def _strike(case: Case, work: Path, pid: int) -> Iterator[str | None]:
    """Each part when it is asked for; None: not yet."""
    if case.strike == "full disk":
        if not case.amount:
            small_disk.fill(work)
        yield "the disk is full" if not case.amount else f"a disk of {case.amount} bytes"
    elif case.strike == "clock":
        clock.set_on(case.amount)
        yield f"the clock is set on by {case.amount} s"
    elif case.strike == "memory":
        names, pids = _victims(case, pid)
        for victim in pids:
            _limit_memory(victim, case.amount)
        yield f"{names} may take {case.amount / MIB:.1f} MiB more"
    elif case.strike.startswith("SIG"):
        yield from _signal(case, pid)
    elif case.strike == "link down":
        yield f"the link of worker 1 goes down for {case.for_s:.2f} s"
    else:
        yield "nothing"


def _signal(case: Case, pid: int) -> Iterator[str | None]:
    names, pids = _victims(case, pid)
    for victim in pids:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.Signals[case.strike])
    yield f"{case.strike} to {names}"
    for_s = case.for_s
    if case.strike != "SIGSTOP":
        return
    if for_s is None and not names.startswith(("worker", "switch")):
        for_s = LONGEST_STOP_S  # nobody else is left who could end it
    if for_s is None:
        return
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        yield None
    for victim in pids:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    yield f"SIGCONT after {for_s:.1f} s"


def _victims(case: Case, pid: int) -> tuple[str, list[int]]:
    """Whom to strike by name, and the pids."""
    named = processes_by_role(case, pid)
    if case.victim == "all":
        return "all", tree(pid)
    if case.victim in named:
        return case.victim, [named[case.victim]]
    others = tree(pid)
    chosen = others[case.seed % len(others)]
    name = next((role for role, known in named.items() if known == chosen), described(chosen))
    return name, [chosen]


def processes_by_role(case: Case, pid: int) -> dict[str, int]:
    """The processes of a command by what they are."""
    roles = {"launcher": pid}
    children = app.children(pid)
    if case.kind == "torchrun":
        return roles | {f"worker {rank}": child for rank, child in enumerate(children)}
    return app.roles(pid) if case.kind == "real" else roles


def _limit_memory(pid: int, more_bytes: int) -> None:
    """Let a process take so much more of the address space than it has."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        kilobytes = int(status.partition("VmSize:")[2].split()[0])
        limit = 1024 * kilobytes + more_bytes
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
