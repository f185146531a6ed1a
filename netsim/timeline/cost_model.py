"""What each operation of a communicator costs on a network: a formula, no simulation of packets.

Against 4 gloo processes on 2 cores (`python -m netsim calibrate`, whose table is in
results/validation/gloo.yaml): over 50 Mbit/s with 10 ms, which no constant was fitted to, half of
the operations are within 1 % and nine in ten within 9. The fitted 100 and 200 Mbit/s are as near:
half within 2 %. At 1 Gbit/s, where the switch and the workers fill the cores, half are within 7 %;
behind token buckets, which no constant was fitted to either, within 13 % there and 1 % at 100
Mbit/s.
Unshaped, where milliseconds hang on who gets a core, broadcasts are up to 2.2 times too slow and
the rest is within a factor of 5. These are the least disturbed of 3 rounds on a quiet host; half of
the operations took over 4 % longer in the most disturbed one.

With 1 % of loss steps are predicted as well as without, see results/validation/time.md. No
constant was fitted to loss: `tcp.throughput` derives from the loss how slow the slowest of several
messages is, and how long it waits for lost packets. `tcp.short_queues` has what a queue costs that
overflows.

Whole training steps, with two lanes at the same time, are compared in results/validation/time.md.

Not modelled: TCP's timeouts at the end of an outage.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline import broadcasts, patterns
from netsim.timeline.cost import Cost, Situation
from netsim.timeline.kept import kept
from netsim.timeline.link_table import LinkSchedule, LinkTable, Ranks
from netsim.timeline.tcp.windows import Window, Windows
from netsim.timeline.transport import GLOO, Transport

_MAX_COSTS = 256
_OPEN = Window(1e15)


class CostedOperation(Protocol):
    """An operation as a communicator reports it (`bagua_algos.communication.communicator`).

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


@dataclass(frozen=True, kw_only=True)
class PlainOperation:
    """A `CostedOperation` that no communicator has done, for questions about its cost."""

    name: str
    num_bytes: int
    ranks: tuple[int, ...]
    peers: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way that the messages of an exchange between n workers take.

    Args:
        senders: whom each receives from, `[n]`.
        places: where among them each one's receiver stands, `[n]`.
        moves: the places of those who do not send to themselves, `[m]`.
        crossed: the links that lead to these, `[4, m]`, as `LinkTable.crossed` has them; the first
            and the last alone, `[2, m]`, if no message leaves its node.
    """

    senders: Ranks
    places: Ranks
    moves: Ranks
    crossed: Ranks


class CostModel:
    """The costs of operations between N workers under a condition.

    `host` is what all workers together move and handle at the most; nothing limits it where each
    has a host of its own. `has_buckets`: token buckets are before the links. `varies`: links
    change over time.

    Args:
        condition: of the network; its time begins at 0 when training does.
        world_size: N.
        transport: of the hosts.
        backend: one of `condition.BACKENDS`, to predict a run on this host, whose workers share its
            processors; None: each worker has a host of its own.

    Raises:
        ValueError: if the condition names a worker that does not exist.
    """

    def __init__(
        self,
        condition: NetworkCondition,
        world_size: int,
        transport: Transport = GLOO,
        *,
        backend: str | None = None,
    ) -> None:
        self.world_size = world_size
        self.transport = transport.over(condition)
        self.has_buckets = backend == "tbf"
        self.varies = condition.varies
        self._nap_s = transport.switch_nap_s if backend == "switch" else 0.0
        self.host = transport.host(backend)
        self.wire_per_payload = wire_per_payload(condition.mtu)
        self._congestion_control = condition.congestion_control
        self._links = LinkSchedule(condition, world_size, transport.bytes_per_s)
        self._everyone: Ranks = np.arange(world_size)
        self._costs: dict[tuple, Cost] = {}
        self._routes: dict[tuple, Route] = {}

    def at(self, at_s: float) -> tuple[LinkTable, float]:
        """The links at a time, and until when they stay so; inf: for ever."""
        return self._links.at(at_s)

    def ranks(self, operation: CostedOperation) -> Ranks:
        """The participants of an operation, in the order of the ring."""
        is_everyone = len(operation.ranks) == self.world_size
        return self._everyone if is_everyone else np.asarray(operation.ranks)

    def route(self, operation: CostedOperation) -> Route:
        """The way that the messages of an exchange take."""
        assert operation.peers is not None, operation.name
        peers = operation.peers
        return kept(
            self._routes,
            (operation.ranks, peers),
            lambda: self._find_route(self.ranks(operation), peers),
            _MAX_COSTS,
        )

    def connections(self, operation: CostedOperation) -> Hashable:
        """A key that is equal for operations that use the same connections in the same way."""
        is_everyone = len(operation.ranks) == self.world_size
        ranks = None if is_everyone else operation.ranks
        return operation.name, ranks, operation.peers, self._by_halves(operation)

    def cost(
        self, operation: CostedOperation, table: LinkTable, windows: Windows | None = None
    ) -> Cost:
        """What an operation takes over these links.

        Args:
            operation: as an observer hears it; `num_bytes` is what every worker hands in.
            table: the links.
            windows: congestion windows that its connections have; None: they are open.

        Raises:
            ValueError: for an operation of an unknown name.
        """
        windows = (_OPEN,) if windows is None else windows
        key = (self.connections(operation), operation.num_bytes, id(table), windows)
        return kept(
            self._costs,
            key,
            lambda: patterns.share_host(self._make(operation, table, windows), self.host),
            _MAX_COSTS,
        )

    def _by_halves(self, operation: CostedOperation) -> bool:
        """Whether it is an all-reduce by halving and doubling, which uses other connections."""
        is_small = operation.num_bytes <= self.transport.halving_doubling_bytes
        return operation.name == "all_reduce_mean" and is_small

    def _make(self, operation: CostedOperation, table: LinkTable, windows: Windows) -> Cost:
        cost = self._formula(operation, table, windows)
        assert not _has_nan(cost), f"{operation.name} costs NaN: {cost}"
        return cost

    def _formula(self, operation: CostedOperation, table: LinkTable, windows: Windows) -> Cost:
        situation = Situation(
            table=table,
            ranks=self.ranks(operation),
            transport=self.transport,
            congestion_control=self._congestion_control,
            windows=windows,
            streams=self.transport.parts(_cut_bytes(operation)),
            nap_s=self._nap_s,
        )
        if len(situation.ranks) < 2:
            return _nothing(situation, is_exchange=operation.name == "exchange")
        if operation.name == "exchange":
            return patterns.exchange(situation, operation.num_bytes, self.route(operation).senders)
        if operation.name not in _COLLECTIVES:
            raise ValueError(
                f"There is no cost of an operation {operation.name!r}: choose one of "
                f"{', '.join([*_COLLECTIVES, 'exchange'])}."
            )
        return _COLLECTIVES[operation.name](situation, operation.num_bytes)

    def _find_route(self, ranks: Ranks, peers: tuple[int, ...]) -> Route:
        senders = ranks[np.argsort(peers)]
        moves = np.flatnonzero(senders != ranks)
        crossed = self.at(0)[0].crossed(senders[moves], ranks[moves])
        stays_inside = (crossed[0] == crossed[1]).all()
        return Route(
            senders=senders,
            places=np.searchsorted(ranks, peers),
            moves=moves,
            crossed=crossed[[0, -1]] if stays_inside else crossed,
        )


def _cut_bytes(operation: CostedOperation) -> float:
    """Of the tensors that are striped: what goes to one worker, or all that is handed in."""
    is_for_each = _COLLECTIVES.get(operation.name) is _all_to_all
    return operation.num_bytes / len(operation.ranks) if is_for_each else operation.num_bytes


def _all_to_all(situation: Situation, num_bytes: float) -> Cost:
    return patterns.pairs(situation, num_bytes / len(situation.ranks))


def _all_gather(situation: Situation, num_bytes: float) -> Cost:
    segment_bytes = situation.transport.gather_segment_bytes
    return patterns.ring(situation, num_bytes, len(situation.ranks) - 1, segment_bytes)


_COLLECTIVES: dict[str, Callable[[Situation, float], Cost]] = {
    "all_reduce_mean": patterns.all_reduce,
    "all_to_all": _all_to_all,
    "reduce_scatter_mean": _all_to_all,
    "all_gather": _all_gather,
    "broadcast": broadcasts.broadcast,
}


def _has_nan(cost: Cost) -> bool:
    """Whether a number of it is none: inf is a time, "never"."""
    numbers = (cost.seconds, cost.drain_s, cost.busy_s, cost.sent_bytes, cost.notice_s)
    numbers += (cost.handover_s, cost.rtt_s, cost.windows, cost.idle_s)
    return any(bool(np.isnan(each).any()) for each in numbers)


def _nothing(situation: Situation, *, is_exchange: bool) -> Cost:
    at_once = np.zeros(len(situation.ranks)) if is_exchange else 0.0
    return Cost(
        seconds=at_once,
        drain_s=at_once,
        busy_s=np.zeros(situation.table.num_links),
        sent_bytes=np.zeros(situation.table.world_size),
        notice_s=at_once,
        handover_s=at_once,
    )
