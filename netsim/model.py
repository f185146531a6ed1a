"""What each operation of a communicator costs on a network: a formula, no simulation of packets.

Against 4 gloo processes at 100 Mbit/s with 1 and 10 ms of delay, 40 KB to 10 MB: rings of 40 KB
and more are within 10 %, most within 5 (all-gathers of 10 KB at 1 ms within 21), exchanges within
6 but for 40 KB at 1 ms (up to 34 too fast), broadcasts within 18 (too slow), all-to-alls within 20
but for 10 MB at 1 ms (up to 30 too fast). At 1 Gbit/s with 1 ms, where the software switch and the
workers filled 2 cores, nearly all but broadcasts were predicted 6 to 54 % too fast; by the kernel's
token bucket, without a delay, rings and exchanges of 10 MB were within 4 %. Unshaped, broadcasts
are up to 4 times too slow. The constants of `Transport` were chosen on these same measurements, so
that this is how well the formulas fit, not how well they predict other hosts.

Not modelled: the drops of a queue that overflows, TCP's timeouts at the end of a message or of an
outage, the burst of a token bucket (0.5 MB at 1 Gbit/s), and processors that workers share.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from netsim import patterns
from netsim.condition import NetworkCondition
from netsim.link_table import Array, LinkSchedule, LinkTable, Ranks
from netsim.patterns import Cost, Situation
from netsim.transport import GLOO, Transport

_MAX_COSTS = 256


class Operation(Protocol):
    """What an observer of a communicator hears: see `bagua_algos.communicator.Operation`.

    `num_bytes` is what each of `ranks` hands in; in an exchange `ranks[i]` sends it to `peers[i]`.
    Ranks ascend.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def num_bytes(self) -> int: ...  # noqa: D102
    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def peers(self) -> tuple[int, ...] | None: ...  # noqa: D102


class CostModel:
    """The costs of operations between N workers under a condition.

    Args:
        condition: of the network; its time begins at 0 when training does.
        world_size: N.
        transport: of the hosts.

    Raises:
        ValueError: if the condition names a worker that does not exist.
    """

    def __init__(
        self, condition: NetworkCondition, world_size: int, transport: Transport = GLOO
    ) -> None:
        self.world_size = world_size
        self.transport = transport
        self._congestion_control = condition.congestion_control
        self._links = LinkSchedule(condition, world_size, transport.bytes_per_s)
        self._everyone: Ranks = np.arange(world_size)
        self._costs: dict[tuple, Cost] = {}

    def at(self, at_s: float) -> tuple[LinkTable, float]:
        """The links at a time, and until when they stay so; inf: for ever."""
        return self._links.at(at_s)

    def ranks(self, operation: Operation) -> Ranks:
        """The participants of an operation, in the order of the ring."""
        is_everyone = len(operation.ranks) == self.world_size
        return self._everyone if is_everyone else np.asarray(operation.ranks)

    def senders(self, operation: Operation) -> Ranks:
        """Whom each participant of an exchange receives from."""
        assert operation.peers is not None, operation.name
        return self.ranks(operation)[np.argsort(operation.peers)]

    def connections(self, operation: Operation) -> Hashable:
        """What is equal for operations that use the same connections in the same way."""
        is_everyone = len(operation.ranks) == self.world_size
        return operation.name, None if is_everyone else operation.ranks, operation.peers

    def cost(self, operation: Operation, table: LinkTable, window_bytes: float) -> Cost:
        """What an operation takes over these links.

        Args:
            operation: as an observer hears it; `num_bytes` is what every worker hands in.
            table: the links.
            window_bytes: congestion window that its connections have.

        Raises:
            ValueError: for an operation of an unknown name.
        """
        key = (self.connections(operation), operation.num_bytes, id(table), window_bytes)
        if key not in self._costs:
            if len(self._costs) >= _MAX_COSTS:
                self._costs.clear()
            self._costs[key] = self._make(operation, table, window_bytes)
        return self._costs[key]

    def _make(self, operation: Operation, table: LinkTable, window_bytes: float) -> Cost:
        situation = Situation(
            table=table,
            ranks=self.ranks(operation),
            transport=self.transport,
            congestion_control=self._congestion_control,
            window_bytes=window_bytes,
        )
        if len(situation.ranks) < 2:
            return _nothing(situation)
        if operation.name == "exchange":
            return patterns.exchange(situation, operation.num_bytes, self.senders(operation))
        if operation.name not in _COLLECTIVES:
            raise ValueError(
                f"There is no cost of an operation {operation.name!r}: choose one of "
                f"{', '.join([*_COLLECTIVES, 'exchange'])}."
            )
        return _COLLECTIVES[operation.name](situation, operation.num_bytes)


def _all_to_all(situation: Situation, num_bytes: float) -> Cost:
    return patterns.pairs(situation, num_bytes / len(situation.ranks))


def _all_gather(situation: Situation, num_bytes: float) -> Cost:
    return patterns.ring(situation, num_bytes, len(situation.ranks) - 1)


_COLLECTIVES: dict[str, Callable[[Situation, float], Cost]] = {
    "all_reduce_mean": patterns.all_reduce,
    "all_to_all": _all_to_all,
    "reduce_scatter_mean": _all_to_all,
    "all_gather": _all_gather,
    "broadcast": patterns.tree,
}


def _nothing(situation: Situation) -> Cost:
    nobody: Array = np.zeros(situation.table.world_size)
    return Cost(
        seconds=0.0, drain_s=0.0, busy_s=np.zeros(situation.table.num_links), sent_bytes=nobody
    )
