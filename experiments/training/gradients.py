"""What a worker's gradient is like: its rank, and how many of its entries are not zero."""

import statistics
from dataclasses import dataclass

import numpy as np
import torch

from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.plan import Plan
from experiments.tasks.base import Batch
from host.errors import UserError


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


MOST_BATCHES = 100
"""That are looked at unless more are asked for."""


def gradient_facts(plan: Plan, num_batches: int | None = None) -> GradientFacts:
    """Those of the training set's first batches, at the weights that training starts from; None: of
    `MOST_BATCHES`, or as many as the training set fills.

    Raises:
        ValueError: less than one batch.
        UserError: more than the training set fills.
    """
    if num_batches is not None and num_batches < 1:
        raise ValueError(f"num_batches must be at least 1, got {num_batches}")
    train, size = plan.load_data().train, plan.batch_size
    most = len(train) // size
    if num_batches is None:
        num_batches = max(1, min(MOST_BATCHES, most))
    if num_batches > most:
        raise UserError(
            f"{len(train)} training examples fill {most} batches of {size}, fewer than "
            f"{num_batches}: take fewer batches, or a smaller batch_size"
        )
    facts = []
    for first in range(0, num_batches * size, size):
        x_wb, y_wb = train.batch(np.arange(first, first + size)[None])
        facts.append(_of_batch(plan, (plan.task.inputs(x_wb), y_wb)))
    ranks, entries = zip(*facts, strict=True)
    return GradientFacts(
        max_rank=max(ranks), median_entries=statistics.median(entries), max_entries=max(entries)
    )


def _of_batch(plan: Plan, batch: Batch) -> tuple[int, int]:
    """The highest rank of a matrix, and the number of entries that are not zero."""
    plan.model.zero_grad()
    plan.task.loss(SingleModel(plan.model), batch).sum().backward()
    gradients = [p.grad for p in plan.model.parameters() if p.grad is not None]
    ranks = [int(torch.linalg.matrix_rank(g)) for g in gradients if g.dim() == 2]
    return max(ranks, default=0), sum(int(g.count_nonzero()) for g in gradients)
