"""Which examples make the batches of an epoch: `data.sampler=shuffled` or `data.sampler=balanced`.

Shapes: n examples, N workers, s examples of one worker in an epoch.
"""

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bagua_algos.data.balance import Balance
from experiments.tasks.base import Indices, Split
from experiments.tasks.partitions import IID, Partition, Shares


class Order(Protocol):
    """The order of every epoch, a pure function of seed and epoch."""

    def epoch(
        self, num_examples: int, num_workers: int, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        """The examples of each worker, int64 `[N, s]`: as many as fill whole batches."""
        ...

    def of(self, examples: Indices) -> "Order":
        """That of these examples `[k]` alone, by their places among them. Raises UserError where
        there is none.
        """
        ...


class Sampler(Protocol):
    """A choice of `conf/data/sampler/`."""

    @property
    def crop(self) -> bool:
        """Whether a worker's batch is cut to the longest of its examples."""
        ...

    def order(self, lengths: NDArray) -> Order:
        """The order of examples of these lengths `[n]`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """A permutation of all examples; worker r takes every N-th from its r-th on."""

    crop: bool = False

    def order(self, lengths: NDArray) -> Order:
        """The same for all lengths."""
        return self

    def epoch(
        self, num_examples: int, num_workers: int, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        """`[N, s]`; an equal global batch has equal examples on any number of workers."""
        global_batch = num_workers * batch_size
        num_taken = num_examples // global_batch * global_batch
        permutation = _permutation(num_examples, seed, epoch)[:num_taken]
        return permutation.reshape(-1, num_workers).T

    def of(self, examples: Indices) -> Order:
        """The same for all examples."""
        return self


SHUFFLED = Shuffled()


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """The order that the examples come in; worker r takes every N-th from its r-th on."""

    def epoch(
        self, num_examples: int, num_workers: int, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        """`[N, s]`; the same in every epoch."""
        global_batch = num_workers * batch_size
        num_taken = num_examples // global_batch * global_batch
        return np.arange(num_taken).reshape(-1, num_workers).T

    def of(self, examples: Indices) -> Order:
        """The same for all examples."""
        return self


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """At each step all workers get examples of like length (`bagua_algos.data.balance`).

    Args:
        random_level: from 0, the best balance, to 1, a plain shuffle.
        shuffle: without it, every epoch goes from the shortest examples to the longest.
        crop: without it, padding makes all examples equally long again.

    Raises:
        ValueError: another level.
    """

    random_level: float = 0.1
    shuffle: bool = True
    crop: bool = True

    def __post_init__(self) -> None:
        self.balance(num_workers=1, seed=0)  # raises

    def balance(self, *, num_workers: int, seed: int) -> Balance:
        """That of a run."""
        return Balance(
            num_workers=num_workers,
            seed=seed,
            random_level=self.random_level,
            shuffle=self.shuffle,
        )

    def order(self, lengths: NDArray) -> Order:
        """That by `lengths`."""
        return _ByLength(lengths.astype(np.float64), self)


@dataclass(frozen=True, eq=False)
class _ByLength:
    lengths: NDArray[np.float64]
    sampler: Balanced

    def epoch(
        self, num_examples: int, num_workers: int, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        global_batch = num_workers * batch_size
        num_taken = num_examples // global_batch * global_batch
        balance = self.sampler.balance(num_workers=num_workers, seed=seed)
        return balance.epoch(self.lengths, epoch, batch_size=batch_size, num_taken=num_taken)

    def of(self, examples: Indices) -> Order:
        return _ByLength(self.lengths[examples], self.sampler)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How training examples reach the workers: the group `data`.

    Args:
        sampler: which examples make a batch.
        partition: which examples a worker has for itself, one of `partitions.KINDS`.
        alpha: of Dirichlet.
        sizes: of the workers' shares, "equal" or "unequal".
        loaders: processes that read for each process that trains; 0: it reads itself.
        for_tuning: whether runs learn, and are judged, by examples of the training set alone, so
            that settings are not tuned on the examples that score them (`tuning_data`).

    Raises:
        ValueError: as `Partition`, fewer than no loaders, or for a sampler that shares all examples
            out by length.
    """

    sampler: Sampler
    partition: str = IID
    alpha: float | None = None
    sizes: str = "equal"
    loaders: int = 0
    for_tuning: bool = False

    def __post_init__(self) -> None:
        if self.loaders < 0:
            raise ValueError(f"data.loaders must be at least 0, got {self.loaders}")
        self._partition.check_sampler(goes_by_length=not isinstance(self.sampler, Shuffled))

    @property
    def has_weights(self) -> bool:
        """Whether workers' losses count by the sizes of their shares."""
        return self.sizes != "equal"

    def shares(
        self, split: Split, *, num_workers: int, batch_size: int, seed: int
    ) -> Shares | None:
        """What each worker has for itself; None: nothing, since all share all. Raises as
        `Partition.shares`.
        """
        if self._partition.is_iid:
            return None
        return self._partition.shares(
            split, num_workers=num_workers, batch_size=batch_size, seed=seed
        )

    @property
    def _partition(self) -> Partition:
        return Partition(kind=self.partition, alpha=self.alpha, sizes=self.sizes)


@functools.lru_cache(maxsize=2)
def _permutation(num_examples: int, seed: int, epoch: int) -> Indices:
    generator = np.random.default_rng(np.random.SeedSequence((seed, epoch)))
    return generator.permutation(num_examples)
