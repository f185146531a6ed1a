"""Which examples each worker sees at each step, as pure functions, so that resuming needs no state.

Shapes: w workers held by this process, b examples a batch, s places of the largest shard.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from experiments.tasks.base import Indices
from experiments.tasks.samplers import SHUFFLED, Order
from host.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Endless training batches for the workers `ranks` of `world_size`.

    Every epoch has an order of its own, which follows from (seed, epoch). Step by step it is cut
    into global batches of world_size * batch_size. Shards are disjoint, an epoch repeats nothing,
    each worker has equally many full batches, and runs of an equal global batch see equal ones on
    any number of workers.

    Raises UserError if a worker's share of the examples does not fill one batch, and ValueError
    for numbers that no run can have.
    """

    num_examples: int
    world_size: int
    ranks: tuple[int, ...]
    batch_size: int
    """Per worker."""
    seed: int
    order: Order = SHUFFLED
    counts_epochs: bool = False
    """Whether indices go on from epoch to epoch, each of `num_examples`."""
    _epochs: dict[int, Indices] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_ranks(self.ranks, self.world_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but got {self.batch_size}.")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, but got {self.seed}.")
        if self.steps_per_epoch == 0:
            raise UserError(
                f"{self.num_examples} training examples do not fill one batch of "
                f"{self.batch_size} on each of {self.world_size} workers: take fewer workers or a "
                "smaller batch_size."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one epoch; what remains of its examples is left out."""
        return self.num_examples // (self.world_size * self.batch_size)

    def indices(self, step: int) -> np.ndarray:
        """The examples of batch `step`, counted from 0 over all epochs: int64 [w, b]."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        start = step_in_epoch * self.batch_size
        batch = self._epoch(epoch)[:, start : start + self.batch_size].take(self.ranks, axis=0)
        return batch + epoch * self.num_examples if self.counts_epochs else batch

    def indices_at(self, steps: np.ndarray) -> np.ndarray:
        """The examples of worker `ranks[i]` at its own step `steps[i]`: int64 [w, b]."""
        batches = {step: self.indices(step) for step in set(steps.tolist())}
        return np.stack([batches[step][i] for i, step in enumerate(steps.tolist())])

    def _epoch(self, epoch: int) -> Indices:
        if epoch not in self._epochs:
            if len(self._epochs) > 1:  # the last two: not all workers need be in the same one
                del self._epochs[min(self._epochs)]
            sizes = self.num_examples, self.world_size, self.batch_size
            self._epochs[epoch] = self.order.epoch(*sizes, self.seed, epoch)
        return self._epochs[epoch]


class Shard(NamedTuple):
    """Unequal shards side by side, the shorter ones padded with index 0 where `mask` is false.

    A padded row must get the label `experiments.tasks.base.PADDING`.
    """

    indices: np.ndarray
    """int64 [w, s]"""
    mask: np.ndarray
    """bool [w, s]"""


def shard(*, num_examples: int, world_size: int, ranks: tuple[int, ...]) -> Shard:
    """Deals examples to workers for evaluation: each to exactly one, sizes at most one apart.

    Every row has the length of the largest shard, also where more workers than examples leave a
    worker none. Raises ValueError for ranks outside the world.
    """
    _check_ranks(ranks, world_size)
    places = -(-num_examples // world_size)
    indices_ws = np.add.outer(np.array(ranks), world_size * np.arange(places))
    mask_ws = indices_ws < num_examples
    return Shard(np.where(mask_ws, indices_ws, 0), mask_ws)


def _check_ranks(ranks: tuple[int, ...], world_size: int) -> None:
    if not ranks or min(ranks) < 0 or max(ranks) >= world_size or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"ranks must be one or more different numbers in 0..{world_size - 1}, but got {ranks}."
        )
