"""Which training examples each worker has for itself: `data.partition=...`.

    iid         all examples are shared out anew in every epoch, whatever they are (the default)
    dirichlet   every worker has another mix of classes, the more uneven the smaller `data.alpha`
    by_class    every worker has as few classes as can be
    by_source   every worker has as few sources (speakers, files) as can be

With `data.sizes=equal`, shares differ by one example at most. A mix of classes is then drawn for
each worker, and where a class is used up, the rest of the mix counts: Hsu, Qi and Brown, arXiv
1909.06335, whose alpha is that of all classes together; here it is that of one, as below. With
`data.sizes=unequal`, each class is cut by a draw over the workers (Yurochkin et al., arXiv
1905.12022; Li et al., arXiv 2102.02079), and whole classes or sources go to the worker with fewest.

Shapes: n examples, N workers, g groups, s examples of one worker in an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from host.errors import UserError

if TYPE_CHECKING:  # who looks at names and numbers alone needs no torch
    from experiments.tasks.base import Indices, Split

IID = "iid"
KINDS = (IID, "dirichlet", "by_class", "by_source")
SIZES = ("equal", "unequal")
MAX_DRAWS = 1_000
"""After as many draws without a batch for each worker, there will be none."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A way of sharing examples out. Raises ValueError for a name or a number that there is not."""

    kind: str = IID
    alpha: float | None = None
    sizes: str = "equal"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"data.partition is {self.kind!r}: choose {', '.join(KINDS)}")
        if self.sizes not in SIZES:
            raise ValueError(f"data.sizes is {self.sizes!r}: choose {' or '.join(SIZES)}")
        if self.kind == IID and self.sizes != "equal":
            raise ValueError(
                "data.partition=iid has equal sizes: leave data.sizes=equal, or choose another"
            )
        if self.kind == "dirichlet" and (self.alpha is None or not 0 < self.alpha < np.inf):
            raise ValueError(
                "data.partition=dirichlet needs a number above 0, such as data.alpha=0.1, but got "
                f"{'none' if self.alpha is None else self.alpha}"
            )
        if self.kind != "dirichlet" and self.alpha is not None:
            raise ValueError(
                f"data.alpha is of data.partition=dirichlet: leave it out with {self.kind}"
            )

    @property
    def is_iid(self) -> bool:
        """Whether no worker has examples of its own."""
        return self.kind == IID

    def check_sampler(self, *, goes_by_length: bool) -> None:
        """Raise ValueError for a sampler that shares all examples out by length."""
        if not self.is_iid and goes_by_length:
            raise ValueError(
                f"data.partition={self.kind} gives every worker its own examples, which "
                "data.sampler=balanced shares out by length: take data.sampler=shuffled, or "
                "data.partition=iid"
            )

    def shares(self, split: Split, *, num_workers: int, batch_size: int, seed: int) -> Shares:
        """The examples of each worker, a pure function of the arguments.

        Raises UserError where the examples have no such groups, or do not give every worker a
        batch.
        """
        assert not self.is_iid
        groups = self._groups(split)
        may_grow = self.sizes == "unequal" and self.kind == "dirichlet"  # by another draw
        smallest = 0
        for draw in range(MAX_DRAWS if may_grow else 1):
            numbers = np.random.default_rng(np.random.SeedSequence((seed, draw, 1)))
            shares = Shares(self._deal(groups, num_workers, numbers), groups)
            smallest = int(shares.sizes.min())
            if smallest >= batch_size:
                return shares
        helps = ["fewer workers"]
        if smallest or may_grow:
            helps.append("a smaller batch_size")
        if self.sizes == "unequal" and len(split) // num_workers >= batch_size:
            helps += ["a greater data.alpha"] * may_grow + ["data.sizes=equal"]
        raise UserError(
            f"data.partition={self.kind} leaves a worker {smallest} of {len(split)} "
            f"examples, less than a batch of {batch_size}: take {' or '.join(helps)}"
        )

    def _groups(self, split: Split) -> Indices:
        """The class or the source of each example, from 0 on: int64 [n]."""
        if self.kind == "by_source":
            if split.sources is None:
                raise UserError(
                    "the task does not say what its examples' sources are: choose another "
                    f"data.partition of {', '.join(KINDS[:-1])}"
                )
            self._check_length(split.sources, split)
            return np.unique(split.sources, return_inverse=True)[1]
        if split.y.ndim > 1 or split.y.dtype.kind not in "iu":
            raise UserError(
                f"data.partition={self.kind} needs a task with one class an example: choose "
                "data.partition=iid, or by_source where the task names sources"
            )
        self._check_length(split.y, split)
        if split.y.min() < 0:
            raise UserError(
                f"data.partition={self.kind} needs classes from 0 on, but one is {split.y.min()}: "
                "leave out examples without a class, or choose data.partition=iid"
            )
        return split.y

    def _check_length(self, groups: Indices, split: Split) -> None:
        """Raise UserError unless there is one for each example."""
        if groups.shape != (len(split),):
            what = "source" if self.kind == "by_source" else "class"
            raise UserError(
                f"data.partition={self.kind} needs one {what} of each of {len(split)} examples, "
                f"but the task names {list(groups.shape)}: give as many, or choose "
                "data.partition=iid"
            )

    def _deal(
        self, groups: Indices, num_workers: int, numbers: np.random.Generator
    ) -> list[Indices]:
        """The examples of each worker, every one at exactly one."""
        pools = [numbers.permutation(np.flatnonzero(groups == g)) for g in range(groups.max() + 1)]
        if self.kind != "dirichlet":
            if self.sizes == "equal":
                return np.array_split(np.concatenate(pools), num_workers)
            return _whole(pools, num_workers)
        assert self.alpha is not None
        if self.sizes == "equal":
            counts = _equal_mixes([len(pool) for pool in pools], num_workers, self.alpha, numbers)
        else:
            counts = _parts([len(pool) for pool in pools], num_workers, self.alpha, numbers)
        ends = counts.cumsum(0)
        dealt = [np.split(pool, ends[:-1, g]) for g, pool in enumerate(pools)]
        return [np.concatenate([parts[w] for parts in dealt]) for w in range(num_workers)]


@dataclass(frozen=True, eq=False)
class Shares:
    """The examples of each worker, and the group of every example: an `Order`.

    A worker passes through its own share again and again, each time in another order, and its
    batches follow one another in that stream: so shares of any sizes give equally many batches, and
    none of their examples is left out.
    """

    of_workers: Sequence[Indices]
    groups: Indices

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each worker `[N]`."""
        return np.array([len(own) for own in self.of_workers])

    @property
    def weights(self) -> NDArray[np.float64]:
        """By what each worker's loss counts in their mean for all examples to count alike `[N]`."""
        sizes = self.sizes
        return sizes * len(sizes) / sizes.sum()

    @property
    def counts(self) -> NDArray[np.int64]:
        """Examples of each group at each worker `[N, g]`."""
        num_groups = self.groups.max() + 1
        return np.stack(
            [np.bincount(self.groups[own], minlength=num_groups) for own in self.of_workers]
        )

    def epoch(
        self, num_examples: int, num_workers: int, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        """`[N, s]`: every worker's next as many examples as one has in the mean."""
        num_taken = num_examples // (num_workers * batch_size) * batch_size
        return np.stack(
            [
                _stream(own, epoch * num_taken, num_taken, (seed, worker))
                for worker, own in enumerate(self.of_workers)
            ]
        )

    def of(self, examples: Indices) -> Shares:
        """None: raises UserError, since the examples are shared out for good."""
        raise UserError(
            "data.partition gives every worker examples of its own, with which another number of "
            "workers, or another batch_size, cannot go on: start as many as the checkpoint has"
        )


def _stream(own: Indices, start: int, length: int, key: tuple[int, int]) -> Indices:
    """So many examples from place `start` on of endless passes through `own`."""
    first, offset = divmod(start, len(own))
    last = (start + length - 1) // len(own)
    passes = [_pass(own, number, key) for number in range(first, last + 1)]
    return np.concatenate(passes)[offset : offset + length]


def _pass(own: Indices, number: int, key: tuple[int, int]) -> Indices:
    seed, worker = key
    numbers = np.random.default_rng(np.random.SeedSequence((seed, number, 2 + worker)))
    return numbers.permutation(own)


def _equal_mixes(
    sizes: Sequence[int], num_workers: int, alpha: float, numbers: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each group `[N, g]`, each worker's mix drawn around that of all examples."""
    left = np.array(sizes)
    counts = np.zeros((num_workers, len(left)), np.int64)
    sums = [len(part) for part in np.array_split(np.arange(left.sum()), num_workers)]
    alphas = alpha * len(left) * np.maximum(left / left.sum(), 1e-9)
    mixes = numbers.dirichlet(alphas, num_workers)
    for own, mix, size in zip(counts, mixes, sums, strict=True):
        while missing := size - own.sum():
            mix = np.where(left > 0, np.maximum(mix, 1e-12), 0.0)
            drawn = numbers.multinomial(missing, mix / mix.sum())
            taken = np.minimum(drawn, left)
            own += taken
            left -= taken
    return counts


def _parts(
    sizes: Sequence[int], num_workers: int, alpha: float, numbers: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each group `[N, g]`, each group cut by a draw over the workers."""
    shares = numbers.dirichlet(np.full(num_workers, alpha), len(sizes))
    ends = np.rint(shares.cumsum(1) * np.array(sizes)[:, None]).astype(np.int64)
    ends[:, -1] = sizes
    return np.diff(ends, axis=1, prepend=0).T


def _whole(pools: Sequence[Indices], num_workers: int) -> list[Indices]:
    """Whole groups, the largest first, each to the worker with fewest examples."""
    shares: list[list[Indices]] = [[] for _ in range(num_workers)]
    sizes = np.zeros(num_workers, np.int64)
    for pool in sorted(pools, key=len, reverse=True):
        poorest = int(sizes.argmin())
        shares[poorest].append(pool)
        sizes[poorest] += len(pool)
    return [np.concatenate(own) if own else np.empty(0, np.int64) for own in shares]
