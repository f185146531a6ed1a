"""What a worker's gradient is like: its rank, and how many of its entries are not zero."""

import statistics
from dataclasses import dataclass

import torch

from experiments.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class GradientFacts:
    """Of several batches' gradients: the highest rank of a matrix, and the number of entries that
    are not zero.
    """

    max_rank: int
    median_entries: float
    max_entries: int

    def __str__(self) -> str:
        return (
            f"rank at most {self.max_rank}; "
            f"entries: median {self.median_entries:g}, most {self.max_entries}"
        )


def gradient_facts(plan: Plan, num_batches: int) -> GradientFacts:
    """Those of the training set's first batches, at the weights that training starts from.

    Raises ValueError for less than one batch.
    """
    if num_batches < 1:
        raise ValueError(f"num_batches must be at least 1, got {num_batches}")
    train, size = plan.task.load().train, plan.batch_size
    facts = []
    for first in range(0, num_batches * size, size):
        x = torch.as_tensor(train.x[first : first + size])
        y = torch.as_tensor(train.y[first : first + size]).long()
        facts.append(_of_batch(plan, x, y))
    ranks, entries = zip(*facts, strict=True)
    return GradientFacts(
        max_rank=max(ranks), median_entries=statistics.median(entries), max_entries=max(entries)
    )


def _of_batch(plan: Plan, x: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
    """The highest rank of a matrix, and the number of entries that are not zero."""
    plan.model.zero_grad()
    outputs = plan.model(plan.task.inputs(x))
    plan.task.loss(outputs.unsqueeze(0), y.unsqueeze(0)).sum().backward()
    gradients = [p.grad for p in plan.model.parameters() if p.grad is not None]
    ranks = [int(torch.linalg.matrix_rank(g)) for g in gradients if g.dim() == 2]
    return max(ranks, default=0), sum(int(g.count_nonzero()) for g in gradients)
