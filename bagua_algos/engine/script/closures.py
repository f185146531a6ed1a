"""Closures of `optimizer.step(closure)`: forward and backward happen within the step."""

from collections.abc import Callable
from typing import Any

CLOSURE = "closure"


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """That of a step, whose pre-hook has these: the optimizer comes first."""
    return kwargs.get(CLOSURE) or (args[1] if len(args) > 1 else None)


class StepClosure:
    """Finds the moment of a step at which its gradients are there: at once, or when the closure has
    returned.

    Args:
        begin: called once a step, at that moment.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._num_calls = 0

    def before_step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple, dict] | None:
        """Begin the step, or return its arguments with another closure, which will begin it.

        `args` and `kwargs` are those of a step's pre-hook.
        """
        self._num_calls = 0
        closure = closure_of(args, kwargs)
        if closure is None:
            self._begin_once()
            return None

        def closure_and_begin() -> Any:
            loss = closure()
            self._begin_once()
            return loss

        return args[:1] + args[2:], {**kwargs, CLOSURE: closure_and_begin}

    def after_step(self) -> None:
        """Raise `ValueError` where the optimizer has not called its closure."""
        if not self._num_calls:
            raise ValueError(
                "the optimizer has not called its closure, so that no gradient is of this step: "
                "call backward() before step() and give it no closure"
            )

    def _begin_once(self) -> None:
        self._num_calls += 1
        if self._num_calls > 1:
            raise ValueError(
                "the optimizer calls its closure several times a step and decides by the losses, "
                "which differ between workers: choose one that calls it once"
            )
        self._begin()
