"""Hooks that do not keep an engine alive.

Python's garbage collector does not see what the hooks of a tensor refer to: an engine that they
referred to would stay, with its model, its optimizer and its threads, after a script has dropped
them without `release`.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bagua_algos.graph_pass import KeepsGradients


class WeakHook:
    """Calls the bound `method` as long as its object lives, and `gone` afterwards."""

    def __init__(self, method: Callable[..., Any], gone: Callable[[], None]) -> None:
        self._find = weakref.WeakMethod(method)
        self._gone = gone

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the method returns, or else `gone`."""
        living = self._find()
        return self._gone() if living is None else living(*arguments, **options)

    @property
    def is_dead(self) -> bool:
        """Whether its object is gone."""
        return self._find() is None


def weakly(method: Callable[..., Any]) -> WeakHook:
    """The bound `method`, for parts of its own object: with none of them in a circle, an engine and
    its buckets go when the last who needs them does, and not at the garbage collector's leisure.
    """
    return WeakHook(method, lambda: None)


class GradientHook(WeakHook, KeepsGradients):
    """One that also tells where a parameter's gradient may be written before it is called
    (`bagua_algos.graph_pass.KeepsGradients`): in `places`, whenever the bound method `may_write`
    says so; nowhere without.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        gone: Callable[[], None],
        places: KeepsGradients,
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(method, gone)
        self._find_places = weakref.ref(places)
        self._may_write = None if may_write is None else weakref.WeakMethod(may_write)

    @property
    def num_passes(self) -> int:
        """How many backward passes have begun that write there."""
        places = self._find_places()
        return -1 if places is None else places.num_passes

    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """The place, or None."""
        may_write = None if self._may_write is None else self._may_write()
        places = self._find_places()
        if places is None or may_write is None or not may_write():
            return None
        return places.place_of(parameter)

    def written(self, parameter: nn.Parameter) -> None:
        """It has been written there."""
        places = self._find_places()
        assert places is not None, "it has just told where that is"
        places.written(parameter)


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
