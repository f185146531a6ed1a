"""Work that a forked child does, reporting rows: a process that has used a GPU cannot fork others
that use it.
"""

import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeVar

from host.errors import Failure, UserError
from host.forks.channel import ParentChannel
from host.memory import ADVICE, is_lack_of_memory, num_oom_kills
from host.processes import fork, kill

Answer = TypeVar("Answer")
Row = TypeVar("Row")


def run_in_child_reporting(
    work: Callable[[Callable[[Row], None]], Answer],
    on_row: Callable[[Row], None],
    expected: tuple[type[Exception], ...] = (),
) -> Answer:
    """What `work` returns in a child, which is gone afterwards.

    Args:
        work: is given a function that reports a row.
        on_row: is given each row here, in the parent.
        expected: errors of `work` that are raised here as they are, as every `UserError` is.

    Raises:
        Failure: the child died, or has no memory left.
        RuntimeError: another error of `work`, whose traceback the child prints.
    """
    ours, theirs = Pipe()
    oom_kills = num_oom_kills()
    pid = fork(lambda: answer_reporting(work, expected, ours, theirs))
    theirs.close()
    try:
        while True:
            kind, value = ours.recv()
            if kind == "row":
                on_row(value)
            elif kind == "answer":
                return value
            else:
                raise value
    except EOFError as error:
        is_full = num_oom_kills() > oom_kills
        why = f", {ADVICE}" if is_full else "; what it printed, or the system's log, says why"
        raise Failure(f"the process that works for this one died{why}") from error
    finally:
        ours.close()
        kill(pid)


def answer_reporting(
    work: Callable[[Callable[[object], None]], object],
    expected: tuple[type[Exception], ...],
    parents: Connection,
    own: Connection,
) -> int:
    """Tell the parent, by the child's `own` end, ("row", row) for each that `work` reports, then
    ("answer", what it returns) or ("error", what it raises); returns the child's exit code.
    """
    parents.close()
    channel = ParentChannel(own)
    try:
        channel.send(("answer", work(lambda row: channel.send(("row", row)))))
    except (UserError, *expected) as error:
        channel.send(("error", error))
    except Exception as error:
        if is_lack_of_memory(error):
            channel.send(("error", Failure(ADVICE)))
            return 0
        traceback.print_exc()
        reason = str(error).strip().splitlines() or [""]
        channel.send(("error", RuntimeError(f"{type(error).__name__}: {reason[0]}")))
    return 0
