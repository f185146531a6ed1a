"""What commands print by rich."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

import rich.console
import rich.progress

from host.commands import UNREAD

T = TypeVar("T")


class Console(rich.console.Console):
    """As rich's; but a command whose reader has gone ends as `host.commands` says."""

    def on_broken_pipe(self) -> None:
        """End without a word. An exception that is no `SystemExit` would be told of by Hydra."""
        with suppress(SystemExit):  # with 1
            super().on_broken_pipe()
        raise SystemExit(UNREAD)


def track(sequence: Iterable[T], description: str, *, transient: bool = False) -> Iterable[T]:
    """rich's bar over a loop, on standard output."""
    return rich.progress.track(sequence, description, console=Console(), transient=transient)
