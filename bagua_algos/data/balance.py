"""The order of an epoch in which all workers get examples of like cost at each step.

    keys   <- (1 - random_level) * place in the order of costs + random_level * uniform
    groups <- neighbours by key: batch_size examples for each worker
    epoch  <- the groups in random order, each dealt to the workers to and fro

Examples of equal cost are in random order. Everything follows from (seed, epoch) and the costs, so
that all workers make the same order without a message.

Shapes: n examples, N workers, b examples of a batch, k examples of some batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bagua_algos.settings import check_flags, check_number, check_whole

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How examples are shared out among workers.

    Args:
        num_workers: N.
        seed: of everything random.
        random_level: 0 sorts by cost and balances best; 1 is a plain shuffle.
        shuffle: without it groups come in the order of their costs, the same in every epoch.

    Raises:
        ValueError: for a number that is none of these.
    """

    num_workers: int
    seed: int = 0
    random_level: float = 0.0
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_flags(self)
        check_whole("num_workers", self.num_workers, least=1)
        check_whole("seed", self.seed, least=0)
        check_number("random_level", self.random_level)
        if not 0 <= self.random_level <= 1:
            raise ValueError(f"random_level must be in [0, 1], got {self.random_level}")
        if self.random_level and not self.shuffle:
            raise ValueError(
                f"random_level={self.random_level} needs shuffle=True: without it nothing is random"
            )

    def epoch(self, costs: NDArray, epoch: int, *, batch_size: int, num_taken: int) -> Indices:
        """The examples of each worker in their order, `[N, num_taken / N]`: batches of
        `batch_size`, the last of which may be smaller.

        `num_taken`, a multiple of N, may be less than n: random examples are left out. It may be
        more: random ones come twice, as in torch's `DistributedSampler`.
        """
        assert num_taken % self.num_workers == 0
        draw = self._draws(epoch)
        order = self._sorted(costs, _take(len(costs), num_taken, draw), draw)
        group = self.num_workers * batch_size
        groups, rest = _cut(order, group, draw)
        deals = [self._deal(part, costs, draw) for part in (groups, rest) if part.size]
        return np.concatenate(
            [deal.transpose(1, 0, 2).reshape(len(deal[0]), -1) for deal in deals], 1
        )

    def batches(self, costs: NDArray, epoch: int, *, budget: float) -> list[Indices]:
        """Batches `[N, k]`, where k times the greatest cost in it is at most `budget`, and k as
        large as it can be among neighbours. Together every example once, and random ones twice
        where n is no multiple of N.
        """
        draw = self._draws(epoch)
        num_taken = math.ceil(len(costs) / self.num_workers) * self.num_workers
        order = self._sorted(costs, _take(len(costs), num_taken, draw), draw)
        ends = _ends(costs[order].reshape(-1, self.num_workers).max(1), budget)
        rows = order.reshape(-1, self.num_workers)
        groups = [rows[start:end].ravel() for start, end in zip([0, *ends], ends, strict=False)]
        if draw is not None:
            groups = [groups[i] for i in draw.permutation(len(groups))]
        return [self._deal(group[None], costs, draw)[0] for group in groups]

    def _draws(self, epoch: int) -> np.random.Generator | None:
        if not self.shuffle:
            return None
        return np.random.default_rng(np.random.SeedSequence((self.seed, epoch)))

    def _sorted(self, costs: NDArray, taken: Indices, draw: np.random.Generator | None) -> Indices:
        order = taken[np.argsort(costs[taken], kind="stable")]
        if draw is None:
            return order
        places, uniform = np.arange(len(order)) / len(order), draw.random(len(order))
        keys = (1 - self.random_level) * places + self.random_level * uniform
        return order[np.argsort(keys, kind="stable")]

    def _deal(self, groups: Indices, costs: NDArray, draw: np.random.Generator | None) -> Indices:
        """Groups `[..., N k]` as `[..., N, k]`: from the cheapest to the dearest, to and fro, so
        that sums are alike, too; a random worker begins.
        """
        by_cost = np.argsort(costs[groups], axis=-1, kind="stable")
        dealt = np.take_along_axis(groups, by_cost, -1)
        dealt = dealt.reshape(len(groups), -1, self.num_workers)
        dealt[:, 1::2] = dealt[:, 1::2, ::-1]
        if draw is not None:
            workers = np.tile(np.arange(self.num_workers), (len(groups), 1))
            dealt = np.take_along_axis(dealt, draw.permuted(workers, axis=1)[:, None], -1)
        return dealt.transpose(0, 2, 1)


def _take(n: int, num_taken: int, draw: np.random.Generator | None) -> Indices:
    """`num_taken` of n examples: all of them equally often, but for one more or less."""
    order = np.arange(n) if draw is None else draw.permutation(n)
    return np.resize(order, num_taken)


def _cut(order: Indices, size: int, draw: np.random.Generator | None) -> tuple[Indices, Indices]:
    """Groups `[g, size]` in random order, and what is left over `[1, ...]`, from a random place:
    from the end, it would always be the dearest.
    """
    num_groups, num_rest = divmod(len(order), size)
    start = size * (num_groups if draw is None else int(draw.integers(num_groups + 1)))
    rest = order[start : start + num_rest]
    groups = np.delete(order, slice(start, start + num_rest)).reshape(-1, size)
    return (groups if draw is None else draw.permutation(groups)), rest[None]


def _ends(costs: NDArray, budget: float) -> Sequence[int]:
    """Where batches of rows end: as many rows in each as keep rows * greatest cost in `budget`."""
    ends, start, greatest = [], 0, 0.0
    for row, cost in enumerate(costs.tolist()):
        greatest = max(greatest, cost)
        if (row - start + 1) * greatest > budget:
            ends.append(row)
            start, greatest = row, cost
    return [*ends, len(costs)]
