"""Work that a forked child does and tells of: what uses a GPU must not be done by a process that is
to fork others that use it.
"""

import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from experiments.training.train import DivergedError
from host.channel import ParentChannel
from host.errors import UserError
from host.processes import fork, kill

Answer = TypeVar("Answer")
Row = dict[str, Any]

_KNOWN = (UserError, DivergedError)
"""What a caller expects, each with one sentence; of the rest it gets the traceback."""


def run_apart(
    work: Callable[[Callable[[Row], None]], Answer], on_row: Callable[[Row], None]
) -> Answer:
    """What `work` returns in a child, which is gone afterwards; `on_row` is given each row that the
    child's `work` reports.

    Raises what `work` raised if it is an error of a user's or of the training; else `RuntimeError`.
    """
    ours, theirs = Pipe()
    pid = fork(lambda: _answer(work, ours, theirs))
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
        raise RuntimeError("the process of the simulated workers died") from error
    finally:
        ours.close()
        kill(pid)


def _answer(
    work: Callable[[Callable[[Row], None]], object], parents: Connection, own: Connection
) -> int:
    parents.close()
    channel = ParentChannel(own)
    try:
        channel.send(("answer", work(lambda row: channel.send(("row", row)))))
    except _KNOWN as error:
        channel.send(("error", error))
    except Exception as error:
        traceback.print_exc()
        reason = str(error).strip().splitlines() or [""]
        channel.send(("error", RuntimeError(f"{type(error).__name__}: {reason[0]}")))
    return 0
