"""The common part of all communicators: the numbers of the workers, the nodes, the observer."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from torch import Tensor

from bagua_algos.communication.communicator import (
    Communicator,
    Nodes,
    Observer,
    Operation,
    check_averages,
    check_rows,
    check_rows_for_each,
    num_bytes_per_worker,
)
from bagua_algos.communication.hierarchy import make_hierarchy
from bagua_algos.communication.threads.at_exit import Departures


class Workers(Communicator):
    """The base class of communicators; a subclass adds the primitives.

    Args:
        world_size: N.
        ranks: the workers that this process holds.
        members: the numbers of all N in the whole that they are a part of.
        observer: hears of every operation.
        clock: seconds, monotonic.
        nodes: which workers share one, for hierarchical primitives; with it, making a communicator
            is a collective call.

    Raises:
        ValueError: fewer than one worker, or nodes that do not share all of them out.
    """

    streams = 1
    halving_doubling_bytes = 0
    fixed_order = False
    pieces = False
    on_streams: Callable[[int], None] | None = None
    departures: Departures | None = None

    def __init__(
        self,
        world_size: int,
        ranks: tuple[int, ...],
        members: tuple[int, ...],
        observer: Observer | None,
        clock: Callable[[], float],
        nodes: Nodes | None,
    ) -> None:
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        self.world_size = world_size
        self.ranks = ranks
        self.members = members
        self.observer = observer
        self.clock = clock
        self.nodes = nodes
        self.hierarchy = make_hierarchy(self, nodes)

    @property
    def shares_memory(self) -> bool:
        """No."""
        return False

    @property
    def awaited(self) -> tuple[int, ...]:
        """Nobody, as far as is known."""
        return ()

    def limit_waits(self, limit_s: float) -> None:
        """Nothing, where no memory is shared."""

    def close(self) -> None:
        """Nothing, where there are no connections."""

    def use_transport(
        self, *, streams: int, halving_doubling_bytes: int, fixed_order: bool, pieces: bool
    ) -> None:
        """Raise `ValueError`, where there are no connections."""
        raise ValueError(f"{type(self).__name__} has no connections to choose between")

    def exchange_rows(self, x_w: Tensor, peers: Sequence[int]) -> Sequence[Tensor]:
        """The rows of what arrives."""
        return self.exchange(x_w, peers).unbind(0)

    def _check(
        self, name: str, x_w: Tensor, *, averages: bool = False, for_each: bool = False
    ) -> None:
        """Raise `ValueError` for rows or a type that a primitive does not take, before anything is
        sent: `x[w, N, ...]` where it has rows `for_each` worker.
        """
        if for_each:
            check_rows_for_each(name, x_w, len(self.ranks), self.world_size)
        else:
            check_rows(name, x_w, len(self.ranks))
        if averages:
            check_averages(name, x_w)

    def _report(
        self, name: str, x_w: Tensor, peers: tuple[int, ...] | None = None, seconds: float = 0.0
    ) -> None:
        """Tell the observer of an operation on `x[w, ...]`."""
        if self.observer is not None:
            self.observer.on_operation(
                Operation(
                    name=name,
                    num_bytes=num_bytes_per_worker(x_w),
                    ranks=self.members,
                    seconds=seconds,
                    peers=peers and _of_whole(peers, self.members),
                )
            )


@lru_cache(maxsize=64)  # exchanges come back every step, among up to thousands of workers
def _of_whole(peers: tuple[int, ...], members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(members[peer] for peer in peers)
