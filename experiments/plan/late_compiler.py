"""torch's compiler, imported when somebody compiles.

The first optimizer imports `torch._dynamo`, all of it, to say that it is not to be compiled: two
seconds of processor time, as many as torch itself takes. Nothing here compiles. A model of a user's
own may, and then finds the compiler as usual.
"""

import importlib
import sys
from collections.abc import Callable
from threading import RLock
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"
_LOCK = RLock()


def put_off_compiler() -> None:
    """Have a stand-in in the place of `torch._dynamo`, unless that is imported already. It knows
    what optimizers and process groups ask of it; whatever else is asked for imports the compiler.
    """
    if _NAME not in sys.modules:
        sys.modules[_NAME] = torch._dynamo = _Later(_NAME)


class _Later(ModuleType):
    """`torch._dynamo`, while nobody compiles."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.trace_rules = _Rules(f"{name}.trace_rules")

    def graph_break(self, msg: str = "") -> None:
        """There is no graph."""

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """`fn`, of which the compiler is told when it is there."""
        if fn is None or not _is_late():
            return _compiler().disable(fn, recursive, **options)
        told: list[Callable[..., Any]] = []

        def later(*args: Any, **kwargs: Any) -> Any:
            if not told and _is_late():
                return fn(*args, **kwargs)
            if not told:
                told.append(_compiler().disable(fn, recursive, **options))
            return told[0](*args, **kwargs)

        return later

    def __getattr__(self, name: str) -> Any:
        # Who walks through all modules asks for such names; a package's path is for its modules.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(_compiler(), name)


class _Rules(ModuleType):
    """`torch._dynamo.trace_rules`, while nobody compiles."""

    def clear_lru_cache(self) -> None:
        """There is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_compiler().trace_rules, name)


def _is_late() -> bool:
    return isinstance(sys.modules.get(_NAME), _Later)


def _compiler() -> ModuleType:
    with _LOCK:
        if _is_late():
            del sys.modules[_NAME]
        return importlib.import_module(_NAME)
