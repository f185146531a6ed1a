"""All links of a network as arrays, and which of them hold when."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.faults import parse_fault
from netsim.conditions.link import LinkCondition, wire_per_payload
from netsim.conditions.units import bytes_per_s
from netsim.timeline.kept import kept

Array = NDArray[np.float64]
Ranks = NDArray[np.intp]

_UNNAMED = -1
"""A rank that no condition names: its links are as all others'."""

_MAX_WAYS = 64
"""Of senders to receivers that a table remembers: those of a collective come back in each step."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Paths between workers, each entry one; rates in payload bytes per second.

    `queue_bytes` is what the shortest queue holds of those that may fill, since their link is no
    faster than the links before it; `burst_bytes` is what the first link's token bucket lets pass
    at once. `excess` is the part of what the first link sends on that comes to the slowest sooner
    than it leaves: 1 - rate / the first link's.
    """

    rate: Array
    delay_s: Array
    jitter_s: Array
    loss: Array
    queue_bytes: Array
    burst_bytes: Array
    excess: Array


class LinkTable:
    """The links of N workers on M nodes during a time in which none changes.

        index   0 .. N-1      N .. 2N-1      2N .. 2N+M-1   2N+M .. 2N+2M-1
        link    uplinks       downlinks      node uplinks   node downlinks

    `buckets_s` is how much sooner a full token bucket before each link lets its burst through than
    the rate alone would.

    Args:
        condition: of the network.
        world_size: N.
        at_s: a time since training began.
        host_rate: payload bytes per second that a worker moves; none of its own links is faster.
            Links between nodes carry what several workers move.
    """

    def __init__(
        self, condition: NetworkCondition, world_size: int, at_s: float, host_rate: float
    ) -> None:
        self.world_size = world_size
        self.nodes: Ranks = np.array([condition.node(rank) for rank in range(world_size)])
        self.num_nodes = int(self.nodes[-1]) + 1
        alike = [condition.link(_UNNAMED, "up", at_s)] * world_size
        alike += [condition.link(_UNNAMED, "down", at_s)] * world_size
        for rank in named_ranks(condition):
            alike[rank] = condition.link(rank, "up", at_s)
            alike[world_size + rank] = condition.link(rank, "down", at_s)
        alike += [condition.node_link("up")] * self.num_nodes
        alike += [condition.node_link("down")] * self.num_nodes
        rates_mbit = [np.inf if link.rate_mbit is None else link.rate_mbit for link in alike]
        wire_rates = np.array([bytes_per_s(rate_mbit) for rate_mbit in rates_mbit], dtype=float)
        self.rates: Array = wire_rates / wire_per_payload(condition.mtu)
        own = slice(2 * world_size)
        self.rates[own] = np.minimum(self.rates[own], host_rate)
        self._delays_s = np.array([link.delay_ms for link in alike]) / 1000
        self._jitters_s = np.array([link.jitter_ms for link in alike]) / 1000
        self._survivals = 1 - np.array([link.loss_pct for link in alike]) / 100
        payload = 1 / wire_per_payload(condition.mtu)
        self._queues = np.array([link.queue_bytes for link in alike]) * payload
        self._bursts = np.array([link.burst_bytes for link in alike]) * payload
        self.buckets_s: Array = self._bursts * np.maximum(1 / self.rates - 1 / host_rate, 0)
        self._paths: dict[tuple[tuple[int, ...], bytes, bytes], Paths] = {}
        self._num_flows: dict[tuple[bytes, bytes], Ranks] = {}

    @property
    def num_links(self) -> int:
        """2N + 2M."""
        return len(self.rates)

    def crossed(self, senders: Ranks, receivers: Ranks) -> Ranks:
        """The links `[4, paths]` that each path crosses: up, node up, node down, down; inside a
        node the first and the last stand twice.
        """
        up, down = senders, self.world_size + receivers
        far = self.nodes[senders] != self.nodes[receivers]
        first_node = 2 * self.world_size
        node_up = np.where(far, first_node + self.nodes[senders], up)
        node_down = np.where(far, first_node + self.num_nodes + self.nodes[receivers], down)
        return np.stack([up, node_up, node_down, down])

    def paths(self, senders: Ranks, receivers: Ranks) -> Paths:
        """From each sender to the receiver of the same place, in arrays of any shape."""
        key = senders.shape, senders.tobytes(), receivers.tobytes()
        return kept(self._paths, key, lambda: self._find_paths(senders, receivers), _MAX_WAYS)

    def num_flows(self, senders: Ranks, receivers: Ranks) -> Ranks:
        """`[links]`: how many of these paths cross each link."""
        key = senders.tobytes(), receivers.tobytes()
        return kept(self._num_flows, key, lambda: self._count_flows(senders, receivers), _MAX_WAYS)

    def _count_flows(self, senders: Ranks, receivers: Ranks) -> Ranks:
        up, node_up, node_down, down = self.crossed(senders, receivers)
        far = self.nodes[senders] != self.nodes[receivers]
        links = np.concatenate([up, node_up[far], node_down[far], down])
        return np.bincount(links, minlength=self.num_links)

    def _find_paths(self, senders: Ranks, receivers: Ranks) -> Paths:
        crossed = self.crossed(senders, receivers)
        is_first = np.ones(crossed.shape, dtype=bool)
        is_first[1:3] = self.nodes[senders] != self.nodes[receivers]
        rates = self.rates[crossed]
        rate = rates.min(0)
        may_fill = rates == np.minimum.accumulate(rates)
        return Paths(
            rate=rate,
            delay_s=(self._delays_s[crossed] * is_first).sum(0),
            jitter_s=(self._jitters_s[crossed] * is_first).sum(0),
            loss=1 - np.where(is_first, self._survivals[crossed], 1).prod(0),
            queue_bytes=np.where(may_fill, self._queues[crossed], np.inf).min(0),
            burst_bytes=self._bursts[crossed[0]],
            excess=1 - rate / rates[0],
        )

    def worst_path(self, ranks: Ranks) -> Paths:
        """A path no better in anything than any between two of these workers, in O(ranks)."""
        ups, downs = ranks, self.world_size + ranks
        links = [ups, downs]
        if len(np.unique(self.nodes[ranks])) > 1:
            nodes = 2 * self.world_size + self.nodes[ranks]
            links += [nodes, nodes + self.num_nodes]
        survival = np.prod([self._survivals[i].min() for i in links])
        rate = min(self.rates[i].min() for i in links)
        return Paths(
            rate=np.asarray(rate),
            delay_s=np.asarray(sum(self._delays_s[i].max() for i in links)),
            jitter_s=np.asarray(sum(self._jitters_s[i].max() for i in links)),
            loss=np.asarray(1.0 - survival),
            queue_bytes=np.asarray(min(self._queues[i].min() for i in links)),
            burst_bytes=np.asarray(self._bursts[ups].max()),
            excess=np.asarray(1 - rate / self.rates[ups].max()),
        )

    def evenness(self, ranks: Ranks) -> float:
        """The rate of the slowest link of these workers, relative to the slowest at the other ends
        of its flows: 1 where all links are alike. Links between nodes are taken to be.
        """
        directions = self.rates[ranks], self.rates[self.world_size + ranks]
        own, others = sorted(directions, key=lambda rates: rates.min())
        opposite = float(np.delete(others, own.argmin()).min())
        if not opposite or len(np.unique(self.nodes[ranks])) > 1:
            return 1.0
        return float(own.min()) / opposite


class LinkSchedule:
    """The tables of a network over time; equal ones are made once.

    Args:
        condition: of the network.
        world_size: how many workers.
        host_rate: see `LinkTable`.

    Raises:
        ValueError: if the condition names a worker that does not exist.
    """

    def __init__(self, condition: NetworkCondition, world_size: int, host_rate: float) -> None:
        condition.check_num_workers(world_size)
        self._condition = condition
        self._world_size = world_size
        self._host_rate = host_rate
        self._ranks = [_UNNAMED, *named_ranks(condition)]
        self._tables: dict[tuple[LinkCondition, ...], LinkTable] = {}
        self._from_s, self._until_s = np.inf, -np.inf
        self._table: LinkTable | None = None

    def at(self, at_s: float) -> tuple[LinkTable, float]:
        """What holds at a time since training began, and until when; inf: for ever."""
        if not self._from_s <= at_s < self._until_s or self._table is None:
            until_s = self._condition.next_change_s(at_s)
            self._from_s, self._until_s = at_s, np.inf if until_s is None else until_s
            self._table = self._make(at_s)
        return self._table, self._until_s

    def _make(self, at_s: float) -> LinkTable:
        key = tuple(
            self._condition.link(rank, direction, at_s)
            for rank in self._ranks
            for direction in ("up", "down")
        )
        if key not in self._tables:
            self._tables[key] = LinkTable(self._condition, self._world_size, at_s, self._host_rate)
        return self._tables[key]


def named_ranks(condition: NetworkCondition) -> list[int]:
    """The workers whose links differ from the others' at any time, sorted."""
    ranks = {int(rank) for rank in condition.workers or {}}
    for entry in condition.faults or ():
        ranks |= set(parse_fault(entry).workers)
    return sorted(ranks)
