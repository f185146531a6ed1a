"""One worker that receives its own messages back: all of an algorithm's work but the network's.

One process stands for one worker of N and computes what it would (every compression, every
average), on numbers of the right shape; nothing travels. So the kernels of an algorithm can be
timed, and its operations listed, for any number of workers.
"""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from bagua_algos.communication.communicator import (
    Nodes,
    Observer,
    Part,
    check_parts,
    check_permutation,
)
from bagua_algos.communication.workers import Workers


class LoopbackCommunicator(Workers):
    """Worker 0 of `world_size`, alone: w = 1. It receives its own data in place of every other
    worker's.

    Args:
        world_size: N.
        observer, clock, nodes: as for other communicators.
        members: the numbers of the workers among all, where this is a part.
        meet: is called in every operation, to wait for whom a real worker would wait for; its
            duplicates take the next ones.

    Raises:
        ValueError: fewer than one worker, or nodes that do not share all of them out.
    """

    def __init__(
        self,
        world_size: int,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        nodes: Nodes | None = None,
        members: tuple[int, ...] | None = None,
        meet: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._meet = meet[0] if meet else None
        self._others = list(meet[1:])
        members = members or tuple(range(world_size))
        super().__init__(world_size, (0,), members, observer, clock, nodes)

    def duplicate(self) -> "LoopbackCommunicator":
        """Return a communicator with the next `meet`; this one where none is left."""
        if not self._others:
            return self
        meet = [self._others.pop(0)]
        return LoopbackCommunicator(
            self.world_size, self.observer, self.clock, self.nodes, self.members, meet
        )

    def split(self, parts: Sequence[Sequence[int]]) -> list[Part]:
        """Return worker 0's part; `ValueError` unless `parts` share all workers out."""
        check_parts(parts, self.world_size)
        (own,) = (part for part in parts if 0 in part)
        members = tuple(self.members[rank] for rank in own)
        communicator = LoopbackCommunicator(
            len(own),
            self.observer,
            self.clock,
            members=members,
            meet=[self._meet] if self._meet else [],
        )
        return [Part(communicator=communicator, rows=slice(0, 1))]

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Change nothing: the mean of equal rows is the row."""
        self._check("all_reduce_mean_", x_w, averages=True)
        self._wait_and_report("all_reduce_mean", x_w)

    def all_to_all(self, x_wN: Tensor) -> Tensor:
        """Return a copy of `x[1, N, ...]`: every worker has the same rows."""
        self._check("all_to_all", x_wN, for_each=True)
        self._wait_and_report("all_to_all", x_wN)
        return x_wN.clone()

    def all_gather(self, x_w: Tensor) -> Tensor:
        """Return `y[1, N, ...]`, the worker's own row N times."""
        self._check("all_gather", x_w)
        self._wait_and_report("all_gather", x_w)
        return x_w.unsqueeze(1).repeat(1, self.world_size, *[1] * (x_w.dim() - 1))

    def reduce_scatter_mean(self, x_wN: Tensor) -> Tensor:
        """Return `y[1, ...]`, the mean of the worker's own N rows."""
        self._check("reduce_scatter_mean", x_wN, averages=True, for_each=True)
        self._wait_and_report("reduce_scatter_mean", x_wN)
        return x_wN.mean(1)

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Change nothing: every worker has the same row."""
        self._check("broadcast_", x_w)
        self._wait_and_report("broadcast", x_w)

    def exchange(self, x_w: Tensor, peers: Sequence[int]) -> Tensor:
        """Return a copy of `x[1, ...]`; `ValueError` for no permutation."""
        check_permutation(peers, self.world_size)
        self._check("exchange", x_w)
        self._wait_and_report("exchange", x_w, tuple(peers))
        return x_w.clone()

    def _wait_and_report(
        self, name: str, x_w: Tensor, peers: tuple[int, ...] | None = None
    ) -> None:
        waited_s = 0.0
        if self._meet is not None:
            started_s = self.clock()
            self._meet()
            waited_s = self.clock() - started_s
        self._report(name, x_w, peers, waited_s)
