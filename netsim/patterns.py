"""What each pattern of messages takes: ring, pairs, tree, exchange.

    B  bytes of a message or piece, payload    R  rate of a path, payload bytes per second
    d  one-way delay with `message_s`          n  participants
    p  segments of a piece

All start with idle links; the timeline adds the waits for links that others use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from netsim import tcp_throughput
from netsim.link_table import Array, LinkTable, Paths, Ranks
from netsim.tcp_throughput import SEGMENT_BYTES
from netsim.transport import Transport

ELEMENT_BYTES = 4
"""An all-reduce of one number is not cut into pieces."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one operation takes on idle links.

    Args:
        seconds: from its start to its end; of an exchange `[n]`, by receiver.
        drain_s: what of it is left when the last byte has left a link; of an exchange `[n]`.
        busy_s: for how long its bytes occupy each link, `[links]`.
        sent_bytes: payload that each worker sends, `[N]`.
        notice_s: of an exchange, what word of a receiver's being ready takes to its sender, `[n]`.
        handover_s: of an exchange, from when a message may leave until its sender is done, `[n]`.
        rtt_s: of its longest path.
        window_bytes: of its connections afterwards.
    """

    seconds: float | Array
    drain_s: float | Array
    busy_s: Array
    sent_bytes: Array
    notice_s: float | Array = 0.0
    handover_s: float | Array = 0.0
    rtt_s: float = 0.0
    window_bytes: float = 0.0

    @cached_property
    def links(self) -> Ranks:
        """The links that it occupies."""
        return np.flatnonzero(self.busy_s)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Where and between whom: the links, the participants' ranks in order, the connections.

    `window_bytes` is the congestion window that the connections have at the start.
    """

    table: LinkTable
    ranks: Ranks
    transport: Transport
    congestion_control: str | None
    window_bytes: float

    def delay_s(self, paths: Paths, num_bytes: float) -> Array:
        """One way, for the last packet of a message: packets never overtake, so of n draws of
        jitter the largest counts, on average (n - 1) / (n + 1) of the most.
        """
        num_packets = max(np.ceil(num_bytes / SEGMENT_BYTES), 1)
        late_s = paths.jitter_s * (num_packets - 1) / (num_packets + 1)
        return paths.delay_s + late_s + self.transport.message_s

    def rate(self, paths: Paths, rtt_s: Array, num_flows: int = 1) -> Array:
        """What so many flows together reach: the slowest link, or what loss leaves of them."""
        return tcp_throughput.loss_limited_rate(
            self.congestion_control, paths.rate, rtt_s, paths.loss, num_flows
        )

    def opened(self, num_bytes: float, rate: Array, rtt_s: Array) -> float:
        """The window of the connections after messages of so many bytes."""
        return tcp_throughput.opened_window_bytes(
            num_bytes, self.window_bytes, float(np.max(rate)), float(np.max(rtt_s))
        )

    def sent(self, num_bytes: float | Array) -> Array:
        """`[N]`, by worker."""
        sent = np.zeros(self.table.world_size)
        sent[self.ranks] = num_bytes
        return sent

    def busy_s(self, senders: Ranks, receivers: Ranks, num_bytes: float) -> Array:
        """`[links]`: each sender sends as much to its receiver."""
        up, node_up, node_down, down = self.table.crossed(senders, receivers)
        far = self.table.nodes[senders] != self.table.nodes[receivers]
        links = np.concatenate([up, node_up[far], node_down[far], down])
        counts = np.bincount(links, minlength=self.table.num_links)
        return counts * num_bytes / self.table.rates


def ring(situation: Situation, num_bytes: float, num_hops: int) -> Cost:
    """`num_hops` times, every participant hands a piece of B bytes on to the next.

    A piece is p segments of s = B / (p R) seconds. With a rendezvous the next segment on a link
    waits for the one p before it to arrive, 2 d in all, and for word of that. In step, this word
    leaves at the moment in which another segment of its worker does: whether it comes before or
    after it, w = 0 or s, is chance where s is more than d, and it comes first where s is less.
    w = s^2 / (s + d) is what was measured between the two.

        hop    = max(slowest link's p s, mean over the ring of s + 2 d + w)      with rendezvous
        hop    = max(slowest link's p s, mean over the ring of s + d)            without
        T      = (num_hops - 1) hop + largest p s + 2 d, or d without

    The mean over the ring and the slowest link are the cycles of the graph of events, whose largest
    cycle mean is the period in the long run (Baccelli et al. 1992, Synchronization and Linearity).
    """
    transport, ranks = situation.transport, situation.ranks
    following = np.roll(ranks, -1)
    there = situation.table.paths(ranks, following)
    back = situation.table.paths(following, ranks)
    delay_s = situation.delay_s(there, num_bytes)
    note_s = situation.delay_s(back, 1)
    rtt_s = delay_s + note_s
    rate = situation.rate(there, rtt_s)
    piece_s = _seconds(num_bytes, rate)
    segment_s = piece_s / transport.num_segments
    around_s = segment_s + delay_s
    if transport.rendezvous:
        around_s += note_s + segment_s / (1 + note_s / np.maximum(segment_s, 1e-9))
    busy_s = situation.busy_s(ranks, following, num_hops * num_bytes)
    slowest_s = max(float(piece_s.max()), float(busy_s.max()) / num_hops)
    hop_s = max(slowest_s, float(around_s.mean()))
    last_s = float((piece_s + delay_s + note_s * transport.rendezvous).max())
    hops_s = (num_hops - 1) * hop_s if num_hops > 1 else 0.0  # hop_s may be infinite
    cold_s = tcp_throughput.slow_start_wait_s(num_bytes, situation.window_bytes, rate, rtt_s)
    return Cost(
        seconds=hops_s + last_s + float(cold_s.max()) + transport.operation_s,
        drain_s=float(delay_s.max()),
        busy_s=busy_s,
        sent_bytes=situation.sent(num_hops * num_bytes),
        rtt_s=float(rtt_s.max()),
        window_bytes=situation.opened(num_bytes, rate, rtt_s),
    )


def all_reduce(situation: Situation, num_bytes: float) -> Cost:
    """A ring of 2 (n - 1) pieces of B / n (Patarasuk and Yuan 2009), or a faster tree."""
    num_workers = len(situation.ranks)
    if num_bytes <= ELEMENT_BYTES:
        return _one_number(situation, num_bytes)
    around = ring(situation, num_bytes / num_workers, 2 * (num_workers - 1))
    if not situation.transport.has_trees:
        return around
    seconds = _double_tree_s(situation, num_bytes)
    return replace(around, seconds=min(seconds, around.seconds))


def pairs(situation: Situation, num_bytes: float) -> Cost:
    """Every participant sends B bytes to each of the others, all at the same time.

        T = largest (bytes on a link / its rate) + min(B, straggling bytes) / R + 2 d

    With a rendezvous; without, one d less. The paths are taken to be as long as the longest. Flows
    do not share a link evenly: when the first is done, the last still has so much to move.
    """
    transport, ranks = situation.transport, situation.ranks
    others = len(ranks) - 1
    path = situation.table.worst_path(ranks)
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.delay_s(path, 1)
    rtt_s = delay_s + note_s
    busy_s = _pairwise_busy_s(situation, num_bytes)
    all_flows = situation.rate(path, rtt_s, others)
    straggling_bytes = min(num_bytes, transport.straggling_bytes) if others > 1 else 0
    moving_s = max(float(busy_s.max()), float(_seconds(others * num_bytes, all_flows)))
    moving_s += float(_seconds(straggling_bytes, all_flows))
    cold_s = tcp_throughput.slow_start_wait_s(
        num_bytes, situation.window_bytes, all_flows / others, rtt_s
    )
    begin_s = note_s * transport.rendezvous + transport.operation_s
    return Cost(
        seconds=float(begin_s + moving_s + delay_s + cold_s),
        drain_s=float(delay_s),
        busy_s=busy_s,
        sent_bytes=situation.sent(others * num_bytes),
        rtt_s=float(rtt_s),
        window_bytes=situation.opened(num_bytes, all_flows, rtt_s),
    )


def tree(situation: Situation, num_bytes: float) -> Cost:
    """The first participant sends to all by a binomial tree: in round i, whoever has the message
    sends it on to 2^i places further. A worker's messages share its link from the start, so that
    each takes as long as all of them together.

        arrival[child] = arrival[parent] + max(children B / R of the uplink, B / R) + d
    """
    transport, ranks, table = situation.transport, situation.ranks, situation.table
    parents = _parents(len(ranks))
    num_children = np.bincount(parents, minlength=len(ranks))
    path = table.paths(ranks[parents], ranks[1:])
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.delay_s(table.paths(ranks[1:], ranks[parents]), 1)
    rtt_s = delay_s + note_s
    rate = situation.rate(path, rtt_s)
    uplink_s = num_children[parents] * num_bytes / table.rates[ranks[parents]]
    cold_s = tcp_throughput.slow_start_wait_s(num_bytes, situation.window_bytes, rate, rtt_s)
    edge_s = np.maximum(uplink_s, _seconds(num_bytes, rate)) + delay_s + cold_s
    arrival_s = np.zeros(len(ranks))
    for first in _powers_of_two(len(ranks)):
        last = min(2 * first, len(ranks))
        children = slice(first - 1, last - 1)
        arrival_s[first:last] = arrival_s[parents[children]] + edge_s[children]
    begin_s = float(note_s.max()) * transport.rendezvous + transport.operation_s
    return Cost(
        seconds=begin_s + float(arrival_s.max()),
        drain_s=float(delay_s.max()),
        busy_s=situation.busy_s(ranks[parents], ranks[1:], num_bytes),
        sent_bytes=situation.sent(num_bytes * num_children.astype(float)),
        rtt_s=float(rtt_s.max()),
        window_bytes=situation.opened(num_bytes, rate, rtt_s),
    )


def exchange(situation: Situation, num_bytes: float, senders: Ranks) -> Cost:
    """Worker r receives B bytes from `senders[r]`, all at the same time.

    T[r] = largest (bytes on a link of its path / the link's rate) + d
    """
    transport, table, ranks = situation.transport, situation.table, situation.ranks
    path = table.paths(senders, ranks)
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.delay_s(table.paths(ranks, senders), 1)
    rtt_s = delay_s + note_s
    moves = senders != ranks
    busy_s = situation.busy_s(senders[moves], ranks[moves], num_bytes)
    rate = situation.rate(path, rtt_s)
    moving_s = np.maximum(busy_s[table.crossed(senders, ranks)].max(0), _seconds(num_bytes, rate))
    cold_s = tcp_throughput.slow_start_wait_s(num_bytes, situation.window_bytes, rate, rtt_s)
    return Cost(
        seconds=np.where(moves, transport.operation_s + moving_s + delay_s + cold_s, 0),
        drain_s=delay_s,
        busy_s=busy_s,
        sent_bytes=situation.sent(num_bytes * moves),
        notice_s=note_s * transport.rendezvous,
        handover_s=_seconds(max(num_bytes - transport.socket_bytes, 0), rate),
        rtt_s=float(rtt_s.max()),
        window_bytes=situation.opened(num_bytes, rate, rtt_s),
    )


def share_host(cost: Cost, bytes_per_s: float) -> Cost:
    """An operation of workers who together move no more than so many payload bytes per second."""
    moving_s = float(cost.sent_bytes.sum()) / bytes_per_s
    return replace(cost, seconds=np.maximum(cost.seconds, moving_s))


def _one_number(situation: Situation, num_bytes: float) -> Cost:
    """It goes around nearly twice; every receiver has been ready since the start."""
    ranks, num_hops = situation.ranks, 2 * (len(situation.ranks) - 1)
    following = np.roll(ranks, -1)
    delay_s = situation.delay_s(situation.table.paths(ranks, following), 1)
    note_s = situation.delay_s(situation.table.paths(following, ranks), 1)
    first_s = float(note_s.max()) * situation.transport.rendezvous
    return Cost(
        seconds=first_s + num_hops * float(delay_s.mean()) + situation.transport.operation_s,
        drain_s=float(delay_s.max()),
        busy_s=situation.busy_s(ranks, following, num_bytes),
        sent_bytes=situation.sent(num_bytes * num_hops / len(ranks)),
        rtt_s=float((delay_s + note_s).max()),
        window_bytes=situation.window_bytes,
    )


def _double_tree_s(situation: Situation, num_bytes: float) -> float:
    """Two binary trees, each with half of the bytes, there and back in a pipeline (Sanders, Speck
    and Traeff 2009):

        T = 2 ceil(log2 n) d + 2 B / R
    """
    path = situation.table.worst_path(situation.ranks)
    delay_s = situation.delay_s(path, num_bytes)
    rate = situation.rate(path, 2 * delay_s)
    num_levels = 2 * math.ceil(math.log2(len(situation.ranks)))
    moving_s = 2 * _seconds(num_bytes, rate)
    return float(num_levels * delay_s + moving_s) + situation.transport.operation_s


def _pairwise_busy_s(situation: Situation, num_bytes: float) -> Array:
    """`[links]`: everyone sends as much to everyone else."""
    table, ranks = situation.table, situation.ranks
    num_messages = np.zeros(table.num_links)
    num_messages[ranks] = num_messages[table.world_size + ranks] = len(ranks) - 1
    inside = np.bincount(table.nodes[ranks], minlength=table.num_nodes)
    num_messages[2 * table.world_size :] = np.tile(inside * (len(ranks) - inside), 2)
    return num_messages * num_bytes / table.rates


def _parents(num_workers: int) -> Ranks:
    """Of the workers from 1 up in a binomial tree: their number without its highest bit."""
    return np.array([child - (1 << child.bit_length() - 1) for child in range(1, num_workers)])


def _powers_of_two(below: int) -> Iterator[int]:
    """1, 2, 4, ..."""
    power = 1
    while power < below:
        yield power
        power *= 2


def _seconds(num_bytes: float, rate: Array) -> Array:
    """Of a message; inf over a link that is down, unless there is nothing to send."""
    if not num_bytes:
        return np.zeros_like(rate)
    with np.errstate(divide="ignore"):
        return np.asarray(num_bytes / rate)
