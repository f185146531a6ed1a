"""Stacked workers: some of them stand still while the others take a step.

One batch computes the step for all workers. The rows of workers that stand still are restored
before the algorithm sees the end of the step.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bagua_algos.optimizer_trial import Trial
from bagua_algos.step_hooks import run_first


class LateStateError(ValueError):
    """An optimizer keeps something only from a later step on, and workers stand still."""


class StandingRows:
    """Puts their rows back after each step, before the engine hears of its end.

    What is one number for all workers, as Adam's count of steps, counts every step of any: it is
    the caller's to put back.

    Args:
        model: a `StackedModel`: parameters and buffers `[w, ...]`.
        optimizer: over its parameters.

    Raises:
        ValueError: an SGD with momentum and dampening; in a step a `LateStateError`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if any(g.get("momentum") and g.get("dampening") for g in optimizer.param_groups):
            raise ValueError(
                "dampening leaves out an optimizer's first step, which workers at their own pace "
                "take at different times: set dampening to 0"
            )
        self._model = model
        self._optimizer = optimizer
        self._num_held = len(next(model.parameters()))
        self._weights: list[tuple[Tensor, Tensor]] = []
        self._states: dict[tuple[Tensor, str], Tensor] = {}
        self._standing = torch.zeros(self._num_held, dtype=torch.bool)
        self._hook = optimizer.register_step_post_hook(lambda *_: self._restore())

    def keep(self, standing_w: Tensor) -> None:
        """The workers of bool `[w]` stand still in the step that begins."""
        self._standing = standing_w
        run_first(self._optimizer, self._hook)  # before the engine's, which comes first else
        if standing_w.any():
            weights = [*self._model.parameters(), *self._model.buffers()]
            self._weights = [(x, x.detach()[standing_w].clone()) for x in weights]
            self._states = {key: x[standing_w].clone() for key, x in self._optimizer_states()}

    def _restore(self) -> None:
        if not self._standing.any():
            return
        with torch.no_grad():
            for x, rows in self._weights:
                x[self._standing] = rows
            for key, x in self._optimizer_states():  # an optimizer may put other tensors there
                if key in self._states:
                    x[self._standing] = self._states[key]
                else:
                    x[self._standing] = self._first_state(*key)[self._standing]
        self._weights, self._states = [], {}

    def _optimizer_states(self) -> Iterator[tuple[tuple[Tensor, str], Tensor]]:
        """What the optimizer keeps of each element, by its parameter and name."""
        for parameter, state in self._optimizer.state.items():
            for name, x in state.items():
                if isinstance(x, Tensor) and x.dim() > 0 and len(x) == self._num_held:
                    yield (parameter, name), x

    def _first_state(self, parameter: Tensor, name: str) -> Tensor:
        """What the optimizer keeps before a worker's first step, such as Rprop's step sizes; after
        a step of zeros it is the same.
        """
        groups = self._optimizer.param_groups
        group = next(own for own in groups if any(p is parameter for p in own["params"]))
        trial = Trial(self._optimizer, group, [torch.zeros_like(parameter)])
        trial.step([torch.zeros_like(parameter)])
        if name not in trial.state_of(0):
            raise LateStateError(
                f"{type(self._optimizer).__name__} keeps {name!r} only from a later step on, which "
                "workers at their own pace take at different times: choose another optimizer"
            )
        return trial.state_of(0)[name]
