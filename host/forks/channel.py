"""How a forked child talks with its parent."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from host.errors import Failure, UserError


class ParentChannel:
    """A child's end of the pipe to its parent.

    A parent that is gone ends the child at once and without a word: nobody is left to be told, and
    the child is about to be killed in any case (`host.processes.fork`), only not yet.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        """Tell the parent; `message` is pickled."""
        with _or_end():
            self._connection.send(message)

    def recv(self) -> Any:
        """The parent's next word, which is waited for without a limit."""
        with _or_end():
            return self._connection.recv()


def told(parent: ParentChannel, run: Callable[[], int]) -> int:
    """What `run` returns, a child's exit code. What it raises with a sentence for the user, the
    parent is sent, to raise it again; then 1.
    """
    try:
        return run()
    except (UserError, Failure) as error:
        parent.send(error)
        return 1


@contextmanager
def _or_end() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)
