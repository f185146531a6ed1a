"""Which workers average together: data from (step, number of workers), without communication.

    x_i <- A_ii x_i + sum_j A_ij x_j         A is a `Mixing`, of N workers at one step

Columns of A sum to 1, so the sum over all workers is kept. In all topologies here rows do, too (A
is doubly stochastic), so workers that agree keep their value, and their mean is kept.

Paper: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
arXiv 2110.13363, compares them. `bagua_algos.communication.primitives` mixes by them.

Shape suffix: N workers in all.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

import numpy as np

from bagua_algos.communication.communicator import check_permutation
from bagua_algos.settings import check_whole


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Worker r sends to worker `peers[r]`; worker i weighs what arrives by `weights[i]`."""

    peers: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The matrix A of one step, as the messages it takes: `self_weights` is its diagonal.

    Raises `ValueError` where an exchange is no permutation or a column does not sum to 1.
    """

    self_weights: tuple[float, ...]
    exchanges: tuple[Exchange, ...] = ()

    def __post_init__(self) -> None:
        for exchange in self.exchanges:
            check_permutation(exchange.peers, len(self.self_weights))
        # Of columns, without the N x N numbers between them.
        sums = np.array(self.self_weights, dtype=float)
        for exchange in self.exchanges:
            sums += np.take(exchange.weights, exchange.peers)
        if not np.allclose(sums, 1):
            raise ValueError(f"every column of a mixing matrix must sum to 1, got {sums.tolist()}")

    def matrix(self) -> np.ndarray:
        """A `[N, N]`: row i holds the weights of what worker i averages."""
        A = np.diag(np.array(self.self_weights, dtype=float))
        for exchange in self.exchanges:
            np.add.at(A, (exchange.peers, range(len(A))), np.take(exchange.weights, exchange.peers))
        return A

    @cached_property
    def averages_all(self) -> bool:
        """Whether every worker gets the mean of all."""
        num_workers = len(self.self_weights)
        return len(self.exchanges) == num_workers - 1 and np.allclose(
            self.matrix(), 1 / num_workers
        )


@dataclass(frozen=True, kw_only=True)
class Topology(ABC):
    """A sequence of mixings; the class says what holds for all of them."""

    is_static: ClassVar[bool] = False
    """Whether every step has the same mixing."""
    is_symmetric: ClassVar[bool] = False
    """Whether A_ij = A_ji: two workers hear from each other, with the same weight."""
    is_doubly_stochastic: ClassVar[bool] = True
    """Whether rows sum to 1 as columns do."""

    @abstractmethod
    def mixing(self, step: int, world_size: int) -> Mixing:
        """The mixing of communication number `step` among `world_size` workers.

        Raises `ValueError` for a number of workers that the topology cannot connect.
        """


@dataclass(frozen=True, kw_only=True)
class Complete(Topology):
    """Everyone averages with everyone."""

    is_static = True
    is_symmetric = True

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Every worker hears from all others, with weight 1 / N each."""
        return _shifts(world_size, tuple(range(1, world_size)))


@dataclass(frozen=True, kw_only=True)
class Ring(Topology):
    """Weight 1/3 each for the worker and both neighbours; two workers: 1/2 each."""

    is_static = True
    is_symmetric = True

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Every worker hears from the worker before and the worker after, with equal weights."""
        return _shifts(world_size, tuple(sorted({1 % world_size, -1 % world_size} - {0})))


@dataclass(frozen=True, kw_only=True)
class Exponential(Topology):
    """The one-peer exponential graph, directed: weight 1/2 for the worker, and 1/2 for the worker
    1, 2, 4, ... places before, in turn.

    For N a power of two, log2 N steps in a row average exactly.
    """

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Worker i hears from worker i - 2^k with weight 1/2, where k cycles with `step`."""
        offsets = _powers_of_two(world_size)
        return _shifts(world_size, (offsets[step % len(offsets)],) if offsets else ())


@dataclass(frozen=True, kw_only=True)
class StaticExponential(Topology):
    """The exponential graph, directed: equal weights for the worker and all that are 1, 2, 4, ...
    places before.
    """

    is_static = True

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Worker i hears from the workers i - 1, i - 2, i - 4, ..., with equal weights."""
        return _shifts(world_size, _powers_of_two(world_size))


@dataclass(frozen=True, kw_only=True)
class ShiftOne(Topology):
    """BAGUA's shift-one: pairs of one worker of each half, shifted by one with every
    communication. The number of workers must be even.
    """

    is_symmetric = True

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Worker r < N/2 is paired with N/2 + (step + r) mod N/2; `ValueError` for odd N."""
        if world_size % 2:
            raise ValueError(
                f"shift-one pairs all workers: it needs an even number of them, got {world_size}"
            )
        half = world_size // 2
        upper = [(step + rank) % half + half for rank in range(half)]
        lower = [(rank - step) % half for rank in range(half)]
        return _pairs(upper + lower)


@dataclass(frozen=True, kw_only=True)
class RandomMatching(Topology):
    """Pairs drawn anew at every step by `seed`, equally on all workers; one of an odd number stays
    alone.
    """

    is_symmetric = True

    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, least=0)

    def mixing(self, step: int, world_size: int) -> Mixing:
        """Pairs drawn by (seed, step), with weight 1/2; one of an odd number stays alone."""
        order = np.random.default_rng((self.seed, step)).permutation(world_size).tolist()
        peers = list(range(world_size))
        for a, b in zip(order[::2], order[1::2], strict=False):
            peers[a], peers[b] = b, a
        return _pairs(peers)


def _powers_of_two(world_size: int) -> tuple[int, ...]:
    return tuple(1 << k for k in range((world_size - 1).bit_length()))


@cache
def _shifts(world_size: int, offsets: tuple[int, ...]) -> Mixing:
    """Equal weights for the worker and the workers `offsets` places before."""
    weights = (1 / (1 + len(offsets)),) * world_size
    places = range(world_size)
    return Mixing(
        self_weights=weights,
        exchanges=tuple(
            Exchange(peers=tuple((r + offset) % world_size for r in places), weights=weights)
            for offset in offsets
        ),
    )


def _pairs(peers: Sequence[int]) -> Mixing:
    """Weight 1/2 for the worker and 1/2 for its peer; a worker that is its own peer keeps its
    value.
    """
    halves = (0.5,) * len(peers)
    return Mixing(self_weights=halves, exchanges=(Exchange(peers=tuple(peers), weights=halves),))
