"""Hooks that do not keep an engine alive.

Python's garbage collector does not see what the hooks of a tensor refer to: an engine that they
referred to would stay, with its model, its optimizer and its threads, after a script has dropped
them without `release`.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


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


class GradientHook(WeakHook):
    """One that also tells where a parameter's gradient may be written before it is called, by the
    bound method `place_of` (`bagua_algos.worker_axis.gradients.KeepsGradients`); nowhere without.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        gone: Callable[[], None],
        place_of: Callable[[nn.Parameter], Tensor | None] | None = None,
    ) -> None:
        super().__init__(method, gone)
        self._find_place = None if place_of is None else weakref.WeakMethod(place_of)

    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """The place, or None."""
        living = None if self._find_place is None else self._find_place()
        return None if living is None else living(parameter)


def nothing_came(parameter: nn.Parameter) -> bool:
    """Whether autograd tells of a gradient that there is not: a function of a script's own has
    returned None. Where other hooks have been told before, one of them may have taken it away.
    """
    return parameter.grad is None and has_one_hook(parameter)


def has_one_hook(parameter: nn.Parameter) -> bool:
    """Whether ours is the only one after its gradient has accumulated."""
    return len(parameter._post_accumulate_grad_hooks) == 1


def remove_dead(parameter: nn.Parameter) -> None:
    """What a model that was dropped without `release` has left on a parameter that lives on."""
    hooks = parameter._post_accumulate_grad_hooks or {}
    for key in [k for k, hook in hooks.items() if isinstance(hook, WeakHook) and hook.is_dead]:
        del hooks[key]
