"""Hooks that do not keep an engine alive.

Python's garbage collector does not see what the hooks of a tensor refer to: an engine that they
referred to would stay, with its model, its optimizer and its threads, after a script has dropped
them without `release`.
"""

import weakref
from collections.abc import Callable
from typing import Any


class WeakHook:
    """Calls the bound `method` as long as its object lives, and `gone` afterwards."""

    def __init__(self, method: Callable[..., Any], gone: Callable[[], None]) -> None:
        self._find = weakref.WeakMethod(method)
        self._gone = gone

    def __call__(self, *arguments: Any) -> Any:
        """What the method returns, or else `gone`."""
        living = self._find()
        return self._gone() if living is None else living(*arguments)

    @property
    def is_dead(self) -> bool:
        """Whether its object is gone."""
        return self._find() is None
