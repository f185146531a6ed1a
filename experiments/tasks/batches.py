"""Which examples each worker sees at each step, as pure functions of the step and of where the
number of workers changed, if it did.

Shapes: w workers held by this process, b examples a batch, s places of the largest shard, k of the
examples that an epoch has left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from experiments.tasks.base import Indices
from experiments.tasks.samplers import SHUFFLED, Order
from host.errors import UserError


class Taken(NamedTuple):
    """A part of an epoch that so many workers have seen."""

    world_size: int
    batch_size: int
    steps: int


class Place(NamedTuple):
    """Where the workers of a run took over, in the middle of an epoch or before it."""

    step: int = 0
    epoch: int = 0
    taken: tuple[Taken, ...] = ()
    """What others had seen of this epoch, one part after another."""


FROM_THE_BEGINNING = Place()


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Endless training batches for the workers `ranks` of `world_size`.

    Every epoch has an order of its own, which follows from (seed, epoch). Step by step it is cut
    into global batches of world_size * batch_size. Shards are disjoint, an epoch repeats nothing,
    each worker has equally many full batches, and runs of an equal global batch see equal ones on
    any number of workers. Where the number of workers changes in the middle of an epoch, those who
    go on share out what is left of it.

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
    place: Place = FROM_THE_BEGINNING
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
        _ = self._left  # raises

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one epoch; what remains of its examples is left out."""
        return self.num_examples // (self.world_size * self.batch_size)

    def passes(self, step: int) -> float:
        """Passes over the training examples after `step` steps, with the part of the present one;
        what an epoch leaves out counts as seen at its end.
        """
        epoch, step_in_epoch = self._where(step)
        if epoch > self.place.epoch:
            return epoch + step_in_epoch / self.steps_per_epoch
        seen = self._left.seen
        return epoch + seen + (1 - seen) * (step_in_epoch / self._left_steps)

    def state_dict(self, step: int) -> dict[str, Any]:
        """For a checkpoint of `step`: the epoch, and by whom what has been seen of it."""
        epoch, step_in_epoch = self._where(step)
        before = self.place.taken if epoch == self.place.epoch else ()
        own = Taken(self.world_size, self.batch_size, step_in_epoch)
        return {
            "num_examples": self.num_examples,
            "epoch": epoch,
            "taken": [tuple(part) for part in (*before, own)],
        }

    def going_on(self, state: Mapping[str, Any], step: int) -> "Batches":
        """Those of workers that go on from a checkpoint of `step` with the `state_dict` of its
        batches.

        Raises UserError where there are other examples, or where they are shared out for good among
        so many workers.
        """
        num_examples = state.get("num_examples", self.num_examples)  # old ones do not tell
        if num_examples != self.num_examples:
            raise UserError(
                f"the checkpoint is of {num_examples} training examples, and the task has "
                f"{self.num_examples}: resume with the data as they were, or begin a new run"
            )
        *before, last = (Taken(*part) for part in state["taken"])
        if last[:2] == (self.world_size, self.batch_size):
            place = Place(step - last.steps, state["epoch"], tuple(before))
        else:
            place = Place(step, state["epoch"], (*before, last))
        return replace(self, place=place)

    def indices(self, step: int) -> np.ndarray:
        """The examples of batch `step`, counted from 0 over all epochs: int64 [w, b]."""
        epoch, step_in_epoch = self._where(step)
        start = step_in_epoch * self.batch_size
        batch = self._epoch(epoch)[:, start : start + self.batch_size].take(self.ranks, axis=0)
        return batch + epoch * self.num_examples if self.counts_epochs else batch

    def indices_at(self, steps: np.ndarray) -> np.ndarray:
        """The examples of worker `ranks[i]` at its own step `steps[i]`: int64 [w, b]."""
        batches = {step: self.indices(step) for step in set(steps.tolist())}
        return np.stack([batches[step][i] for i, step in enumerate(steps.tolist())])

    def _where(self, step: int) -> tuple[int, int]:
        """The epoch of `step`, and its number there, counted from where these workers took over."""
        since = step - self.place.step
        if since < self._left_steps:
            return self.place.epoch, since
        epochs, step_in_epoch = divmod(since - self._left_steps, self.steps_per_epoch)
        return self.place.epoch + 1 + epochs, step_in_epoch

    def _epoch(self, epoch: int) -> Indices:
        if epoch not in self._epochs:
            if len(self._epochs) > 1:  # the last two: not all workers need be in the same one
                del self._epochs[min(self._epochs)]
            sizes = self.world_size, self.batch_size, self.seed, epoch
            is_first = epoch == self.place.epoch
            self._epochs[epoch] = (self._left if is_first else self._all).batches(*sizes)
        return self._epochs[epoch]

    @property
    def _all(self) -> "_Left":
        return _Left(self.num_examples, self.order)

    @cached_property
    def _left(self) -> "_Left":
        """What the epoch of `place` has left for these workers."""
        left = self._all
        for part in self.place.taken:
            batches = left.batches(part.world_size, part.batch_size, self.seed, self.place.epoch)
            left = left.after(batches, part.steps * part.batch_size)
        return left

    @cached_property
    def _left_steps(self) -> int:
        """Those that it is enough for."""
        return self._left.num_examples // (self.world_size * self.batch_size)


class _Left(NamedTuple):
    """Of an epoch in whose middle others go on."""

    num_examples: int
    order: Order
    seen: float = 0.0
    """The part of the epoch that is done, whose last batch ends it."""
    examples: Indices | None = None
    """Which ones: int64 [k], in ascending order; None: all."""

    def batches(self, num_workers: int, batch_size: int, seed: int, epoch: int) -> Indices:
        """As `Order.epoch`."""
        places = self.order.epoch(self.num_examples, num_workers, batch_size, seed, epoch)
        return places if self.examples is None else self.examples[places]

    def after(self, batches: Indices, taken: int) -> "_Left":
        """What is left after the first `taken` examples of each worker."""
        examples = np.arange(self.num_examples) if self.examples is None else self.examples
        is_left = ~np.isin(examples, batches[:, :taken])
        order = self.order.of(np.flatnonzero(is_left))
        seen = self.seen + (1 - self.seen) * taken / batches.shape[1]
        return _Left(int(is_left.sum()), order, seen, examples[is_left])


class Shard(NamedTuple):
    """Unequal shards side by side, the shorter ones padded with the last example, which a stream
    need not begin anew for, where `mask` is false.

    A padded row must get the label `experiments.tasks.base.PADDING`.
    """

    indices: np.ndarray
    """int64 [w, s]"""
    mask: np.ndarray
    """bool [w, s]"""

    def shortest_first(self, lengths: np.ndarray) -> "Shard":
        """The same examples of each worker by their `lengths` [n], padding behind them."""
        lengths_ws = np.where(self.mask, lengths[self.indices], np.iinfo(np.int64).max)
        order_ws = lengths_ws.argsort(axis=1, kind="stable")
        return Shard(*(np.take_along_axis(own_ws, order_ws, axis=1) for own_ws in self))


def shard(*, num_examples: int, world_size: int, ranks: tuple[int, ...]) -> Shard:
    """Deals examples to workers for evaluation: each to exactly one, sizes at most one apart.

    Every row has the length of the largest shard, also where more workers than examples leave a
    worker none. Raises ValueError for ranks outside the world.
    """
    _check_ranks(ranks, world_size)
    places = -(-num_examples // world_size)
    indices_ws = np.add.outer(np.array(ranks), world_size * np.arange(places))
    mask_ws = indices_ws < num_examples
    return Shard(np.where(mask_ws, indices_ws, num_examples - 1), mask_ws)


def _check_ranks(ranks: tuple[int, ...], world_size: int) -> None:
    if not ranks or min(ranks) < 0 or max(ranks) >= world_size or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"ranks must be one or more different numbers in 0..{world_size - 1}, but got {ranks}."
        )
