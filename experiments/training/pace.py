"""Who takes the next step: here all workers together, each step at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from experiments.tasks.batches import Batches
from experiments.training.step import Step

Pace = Callable[[Batches, Step, int, int], Iterator[Tensor]]
"""Takes the steps from the third to the fourth argument; yields losses `[w]` after each step of the
first worker held here.
"""


MakePace = Callable[[nn.Module, torch.optim.Optimizer], Pace]
"""Makes the pace of a model, before it is distributed."""


def together(batches: Batches, take_step: Step, start: int, end: int) -> Iterator[Tensor]:
    """All workers take each step at once."""
    take_step.read_ahead(batches, start)
    for step in range(start, end):
        yield take_step(batches.indices(step))
