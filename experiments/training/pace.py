"""Who takes the next step: here all workers together, each step at once."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from experiments.tasks.batches import Batches
from experiments.training.step import Step


class Pace(Protocol):
    """How workers go on from one evaluation to the next."""

    def __call__(
        self, batches: Batches, take_step: Step, start: int, due: int, limit: int
    ) -> Iterator[Tensor]:
        """Take steps until all workers have done `due`, and no worker more than `limit`; yields the
        losses `[w]` after each step of the first worker held here, which has done `start`.
        """
        ...

    def wait(self, due: int) -> None:
        """Wait until all workers have done `due` steps, while the clocks stand still."""
        ...

    def steps_w(self) -> Tensor | None:
        """Steps that each worker held here has done, float64 `[w]`; None: all workers have done
        equally many.
        """
        ...


MakePace = Callable[[nn.Module, torch.optim.Optimizer], Pace]
"""Makes the pace of a model, before it is distributed."""


class Together:
    """All workers take each step at once."""

    def __call__(
        self, batches: Batches, take_step: Step, start: int, due: int, limit: int
    ) -> Iterator[Tensor]:
        """Take the steps from `start` to `due`."""
        take_step.read_ahead(batches, start)
        for step in range(start, due):
            yield take_step(batches.indices(step))

    def wait(self, due: int) -> None:
        """Do nothing: who is late is waited for by the evaluation itself."""

    def steps_w(self) -> None:
        """All have done equally many."""
