"""Optimizers beside the distributed one, which train parameters of a distributed model, too."""

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bagua_algos.engine.script.changes import AGAIN, named, parameters_of
from bagua_algos.engine.script.closures import closure_of


class OtherOptimizers:
    """Looks at every optimizer before it steps, from `attach` on.

    Args:
        model: holds the parameters, and knows their names.
        optimizer: the one that was distributed with the model.
        distributed: the parameters in buckets.
        may_step: whether another optimizer may update these: yes where an algorithm only averages
            gradients, no where it acts on weights or at a step.
        num_passes: how many backward passes have begun in which workers meet.
        check_gradients: is given those parameters of each other optimizer that are in buckets, if
            any, when their gradients are there: before its step, or after one by a closure. And
            whether another pass has begun since its last step, `is_pass_new`. May raise.
        after_step: is given the same parameters of each other optimizer, after its step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        distributed: Iterable[nn.Parameter],
        *,
        may_step: bool,
        num_passes: Callable[[], int],
        check_gradients: Callable[..., None],
        after_step: Callable[[list[nn.Parameter]], None],
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._distributed = set(distributed)
        self._may_step, self._num_passes = may_step, num_passes
        self._check_gradients, self._after_step = check_gradients, after_step
        self._approved: weakref.WeakKeyDictionary[Optimizer, list[tuple]] = (
            weakref.WeakKeyDictionary()
        )
        self._passes_before: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def attach(self) -> None:
        """From here on."""
        _hook_all_optimizers()
        _LOOKING.add(self)

    def detach(self) -> None:
        """No longer."""
        _LOOKING.discard(self)

    def before(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """It is about to step, by a closure or not: raise `ValueError` where it must not."""
        is_within_backward = torch._C._current_graph_task_id() != -1
        if optimizer is self._optimizer and not is_within_backward:
            return
        parameters = parameters_of(optimizer)
        if is_within_backward:
            self._refuse_within_backward(parameters)
        known = [(id(parameter), parameter.requires_grad) for parameter in parameters]
        if self._approved.get(optimizer) != known:
            self._refuse_unheard(parameters)
            self._approved[optimizer] = known
        if not has_closure:
            self._check(optimizer, parameters)

    def after(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """It has stepped."""
        if optimizer is not self._optimizer:
            parameters = parameters_of(optimizer)
            if has_closure:
                self._check(optimizer, parameters)
            self._passes_before[optimizer] = self._num_passes()
            self._after_step(self._own(parameters))

    def _check(self, optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
        own = self._own(parameters)
        if own:
            is_pass_new = self._num_passes() != self._passes_before.get(optimizer, 0)
            self._check_gradients(own, is_pass_new=is_pass_new)

    def _own(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if parameter in self._distributed]

    def _refuse_unheard(self, parameters: Iterable[nn.Parameter]) -> None:
        own = set(self._model.parameters()) | self._distributed
        for parameter in parameters:
            if parameter in own and parameter.requires_grad and not self._is_allowed(parameter):
                way = (
                    "give it to the distributed optimizer, in a group of its own if it needs other "
                    "options"
                )
                if parameter not in self._distributed:  # frozen then, or not there
                    way = f"{AGAIN}, with it to be trained"
                raise ValueError(
                    f"{named(self._model, parameter)} belongs to a distributed model, and another "
                    f"optimizer is about to change it, which the algorithm would not hear of: {way}"
                )

    def _refuse_within_backward(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter in self._distributed:
                raise ValueError(
                    f"an optimizer steps {named(self._model, parameter)} during backward, by a "
                    "gradient that workers have not averaged yet: take the hook that calls it "
                    "away, and call the distributed optimizer's step() after backward()"
                )

    def _is_allowed(self, parameter: nn.Parameter) -> bool:
        return self._may_step and parameter in self._distributed


_LOOKING: weakref.WeakSet[OtherOptimizers] = weakref.WeakSet()


@cache
def _hook_all_optimizers() -> None:
    """One pair of hooks for all, which stays: torch forbids that the garbage collector, which may
    come at any time, removes one of these hooks while others run.
    """

    def before(optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        for others in list(_LOOKING):
            others.before(optimizer, has_closure=closure_of(args, kwargs) is not None)

    def after(optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        for others in list(_LOOKING):
            others.after(optimizer, has_closure=closure_of(args, kwargs) is not None)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
