"""Stacked workers: some of them stand still while the others take a step.

One batch computes the step for all workers. The rows of workers that stand still are restored
before the algorithm sees the end of the step.
"""

import torch
from torch import Tensor, nn


class StandingRows:
    """Construct it before the engine: hooks of the optimizer run in their order.

    What is one number for all workers, as Adam's count of steps, counts every step of any: it is
    the caller's to put back.

    Args:
        model: a `StackedModel`: parameters and buffers `[w, ...]`.
        optimizer: over its parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._num_held = len(next(model.parameters()))
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._standing = torch.zeros(self._num_held, dtype=torch.bool)
        optimizer.register_step_post_hook(lambda *_: self._restore())

    def keep(self, standing_w: Tensor) -> None:
        """The workers of bool `[w]` stand still in the step that begins."""
        self._standing = standing_w
        self._kept = [(x, x.detach()[standing_w].clone()) for x in self._tensors()]

    def _restore(self) -> None:
        known = {id(x) for x, _ in self._kept}
        with torch.no_grad():
            for x, rows in self._kept:
                x[self._standing] = rows
            for x in self._tensors():
                if id(x) not in known:  # the optimizer has made it in this step
                    x[self._standing] = 0
        self._kept = []

    def _tensors(self) -> list[Tensor]:
        if not self._standing.any():
            return []
        state = [
            value
            for parameter in self._optimizer.state.values()
            for value in parameter.values()
            if isinstance(value, Tensor) and value.dim() > 0 and len(value) == self._num_held
        ]
        return [*self._model.parameters(), *self._model.buffers(), *state]
