"""Two levels of workers: within a node links are fast, between nodes they are not.

    x_i <- mean of the workers of i's node       in full precision
    a primitive among the nodes' leaders         the first worker of each
    x_i <- the leader's                          broadcast within the node

On a single node the first line is all: nothing is compressed, and nobody gossips.

A node counts for as many workers as it has, so the mean over leaders is the mean over workers:

    mean_i x_i = mean_k (s_k K / N) mean_{i in k} x_i     s_k workers in node k of K, N in all

Paper: Gan et al., "BAGUA", arXiv 2107.01499. Differs from BAGUA's code, which averages nodes' means
without weights: this is the mean over workers only where all nodes are equal.

Shape suffixes: w workers held here, p of them that take part.
"""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from bagua_algos.communication.communicator import (
    Communicator,
    Levels,
    Nodes,
    Primitive,
    check_parts,
)
from kernels.upload import upload


class Flat:
    """One level: all workers take part, each for itself."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.num_parties = communicator.world_size

    def of_parties(self, x_w: Tensor) -> Tensor:
        """All rows."""
        return x_w

    def run_(self, x_w: Tensor, primitive: Primitive) -> None:
        """The primitive itself."""
        primitive(x_w, self._communicator)

    def weigh_(self, x_p: Tensor) -> None:
        """Nothing: the mean over parties is one over workers."""

    def pace(self, like: Tensor) -> Tensor | float:
        """All the way."""
        return 1.0


class Hierarchy:
    """Two levels: nodes of workers, and the leaders of the nodes, which are the parties of a
    primitive. Making it is a collective call.
    """

    def __init__(self, communicator: Communicator, nodes: Sequence[tuple[int, ...]]) -> None:
        sizes = [len(node) for node in nodes]
        self.num_parties = len(nodes)
        self._weights = [size * len(nodes) / sum(sizes) for size in sizes]
        self._paces = [min(sizes) / size for size in sizes]
        self._nodes = communicator.split(nodes)
        # The first workers of all nodes, the second ones, ...: only the first, the leaders, have
        # a use, but every worker has to be in one part.
        places = [[r for r in place if r is not None] for place in zip_longest(*nodes)]
        members = tuple(communicator.members[node[0]] for node in nodes)
        parts = communicator.split([sorted(place) for place in places])
        self._leaders = [part for part in parts if part.communicator.members == members]

    def of_parties(self, x_w: Tensor) -> Tensor:
        """The rows of `x[w, ...]` that take part, `[p, ...]`: none where no leader is held here."""
        return x_w[self._leaders[0].rows] if self._leaders else x_w[:0]

    def run_(self, x_w: Tensor, primitive: Primitive) -> None:
        """Replace `x[w, ...]` by what `primitive` makes of the nodes' means among the leaders."""
        for node in self._nodes:
            if node.communicator.world_size > 1:
                node.run_(x_w, lambda x_p, workers: workers.all_reduce_mean_(x_p))
        for leaders in self._leaders:
            leaders.run_(x_w, primitive)
        for node in self._nodes:
            if node.communicator.world_size > 1:
                node.run_(x_w, lambda x_p, workers: workers.broadcast_(x_p))

    def weigh_(self, x_p: Tensor) -> None:
        """Scale the leaders' `x[p, ...]`, so that their mean is one over workers."""
        if len(set(self._weights)) > 1:
            x_p.mul_(self._of_held(self._weights, x_p))  # rounded once, where x has 16 bits

    def pace(self, like: Tensor) -> Tensor | float:
        """How far a leader may go to its neighbours' average, as a factor of `like[p, ...]`.

        The factor is s_min / s_k in node k. It keeps the workers' mean under any doubly stochastic
        mixing, and leaders that agree keep their value.
        """
        return self._of_held(self._paces, like) if len(set(self._paces)) > 1 else 1.0

    def _of_held(self, weights: Sequence[float], like: Tensor) -> Tensor:
        [leaders] = self._leaders
        return of_held(weights, leaders.communicator, like)


class OneNode:
    """Two levels where all workers share a node: its leader has no other to meet."""

    num_parties = 1

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def of_parties(self, x_w: Tensor) -> Tensor:
        """The row of worker 0, `[1, ...]`; `[0, ...]` where it is not held here."""
        return x_w[:1] if 0 in self._communicator.ranks else x_w[:0]

    def run_(self, x_w: Tensor, primitive: Primitive) -> None:
        """Replace `x[w, ...]` by the node's mean, in full precision."""
        self._communicator.all_reduce_mean_(x_w)

    def weigh_(self, x_p: Tensor) -> None:
        """Nothing: the mean of one."""

    def pace(self, like: Tensor) -> Tensor | float:
        """All the way."""
        return 1.0


def make_hierarchy(communicator: Communicator, nodes: Nodes | None) -> Hierarchy | OneNode | None:
    """None where nodes are not known, or each has one worker, and so makes no difference.

    Raises `ValueError` for nodes that do not share all workers out.
    """
    if nodes is None:
        return None
    check_parts(nodes, communicator.world_size)
    if len(nodes) == communicator.world_size:
        return None
    if len(nodes) == 1:
        return OneNode(communicator)
    return Hierarchy(communicator, sorted(nodes))


def levels(communicator: Communicator, hierarchical: bool) -> Levels:
    """Who takes part in a primitive.

    Raises `ValueError` where it is to be hierarchical and nodes are not known.
    """
    if hierarchical and communicator.nodes is None:
        raise ValueError(
            "hierarchical=True needs to know which workers share a node, which this communicator "
            "was not told: give it nodes, as ((0, 1), (2, 3)), or set hierarchical=False"
        )
    return (communicator.hierarchy if hierarchical else None) or Flat(communicator)


def of_held(weights: Sequence[float], communicator: Communicator, like: Tensor) -> Tensor:
    """The `weights` of the workers held here, as a factor `[w, 1, ...]` of `like[w, ...]`, in
    float32 at least.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    held = [weights[rank] for rank in communicator.ranks]
    shape = (len(held), *[1] * (like.dim() - 1))
    if len(set(held)) == 1:  # a real worker's only one: a number in a kernel's arguments
        return torch.full(shape, held[0], dtype=dtype, device=like.device)
    return upload(torch.tensor(held, dtype=dtype, device="cpu").view(shape), like.device)
