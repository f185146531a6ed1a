"""N simulated workers in one process: what `torch.distributed` does with messages is indexing here.

Values only: no time passes. A timeline that observes the communicator keeps the clocks.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bagua_algos.communication.communicator import (
    Nodes,
    Observer,
    Part,
    Relay,
    check_parts,
    check_permutation,
)
from bagua_algos.communication.workers import Workers


class StackedCommunicator(Workers):
    """All `world_size` workers, held by this process: w = N.

    `nodes` says which workers share one, for hierarchical primitives. Raises `ValueError` for fewer
    than one worker, and for nodes that do not share all of them out.
    """

    def __init__(
        self,
        world_size: int,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        nodes: Nodes | None = None,
    ) -> None:
        everyone = tuple(range(world_size))
        super().__init__(world_size, everyone, everyone, observer, clock, nodes)

    def duplicate(self) -> "StackedCommunicator":
        """Return this communicator: there are no connections to share."""
        return self

    def split(self, parts: Sequence[Sequence[int]]) -> list[Part]:
        """Return every part; `ValueError` unless `parts` share all workers out."""
        check_parts(parts, self.world_size)
        return [self._part(part) for part in parts]

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Replace `x[N, ...]` by its mean; 16-bit sums are rounded at each hop, as in a ring."""
        self._check("all_reduce_mean_", x_w, averages=True)
        if x_w.dtype == torch.float16:
            x_w.div_(self.world_size)  # before: their sum may be beyond the type's range
            x_w.copy_(_rounded_sum(x_w).expand_as(x_w))
        elif x_w.dtype == torch.bfloat16:
            x_w.copy_((_rounded_sum(x_w) / self.world_size).expand_as(x_w))
        else:
            x_w.copy_((x_w.sum(0, keepdim=True) / self.world_size).expand_as(x_w))
        self._report("all_reduce_mean", x_w)

    def all_to_all(self, x_wN: Tensor) -> Tensor:
        """Swap the first two axes: `x[N, N, ...]` -> `y[N, N, ...]` with `y[i, j] = x[j, i]`."""
        self._check("all_to_all", x_wN, for_each=True)
        self._report("all_to_all", x_wN)
        return x_wN.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def all_gather(self, x_w: Tensor) -> Tensor:
        """`x[N, ...]` -> `y[N, N, ...]`, an expanded copy of `x`: read it, do not write to it."""
        self._check("all_gather", x_w)
        self._report("all_gather", x_w)
        return x_w.clone().unsqueeze(0).expand(self.world_size, *x_w.shape)

    def reduce_scatter_mean(self, x_wN: Tensor) -> Tensor:
        """`x[N, N, ...]` -> `y[N, ...]` with `y[i]` = the mean over j of `x[j, i]`."""
        self._check("reduce_scatter_mean", x_wN, averages=True, for_each=True)
        self._report("reduce_scatter_mean", x_wN)
        return x_wN.mean(0)

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Replace every row of `x[N, ...]` by row `source`."""
        self._check("broadcast_", x_w)
        x_w.copy_(x_w[source].clone().expand_as(x_w))
        self._report("broadcast", x_w)

    def exchange(self, x_w: Tensor, peers: Sequence[int]) -> Tensor:
        """Return `y[N, ...]` with `y[peers[r]] = x[r]`; `ValueError` for no permutation."""
        return torch.stack(self.exchange_rows(x_w, peers))

    def exchange_rows(self, x_w: Tensor, peers: Sequence[int]) -> list[Tensor]:
        """Those of `exchange`, which are rows of `x[N, ...]` in another order."""
        check_permutation(peers, self.world_size)
        self._check("exchange", x_w)
        self._report("exchange", x_w, tuple(peers))
        sources = dict(zip(peers, x_w.unbind(0), strict=True))
        return [sources[rank] for rank in range(self.world_size)]

    def _part(self, part: Sequence[int]) -> Part:
        communicator = StackedCommunicator(len(part), Relay(self), self.clock)
        communicator.members = tuple(self.members[rank] for rank in part)
        is_stretch = part[-1] - part[0] == len(part) - 1
        rows = slice(part[0], part[-1] + 1) if is_stretch else list(part)
        return Part(communicator=communicator, rows=rows)


def _rounded_sum(x_w: Tensor) -> Tensor:
    """The sum over all workers, `[1, ...]`, rounded to its type after each addition."""
    total = x_w[:1].clone()
    for row in x_w[1:]:
        total += row
    return total
