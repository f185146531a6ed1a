"""What each pattern of messages takes: ring, pairs, exchange. `broadcasts.py` has the others.

    B  bytes of a message or piece, payload    R  rate of a path, payload bytes per second
    d  one-way delay with `message_s`          n  participants
    p  segments in flight at the same time, of each stream     k  streams

All start with idle links; the timeline adds the waits for links that others use. Where packets are
lost, the slowest of the messages of a round counts (`throughput.message_s`), and it waits for
the repair of what is lost at its end (`recovery_wait_s`).
"""

import math
from dataclasses import replace

import numpy as np

from netsim.timeline import halving_doubling, streams
from netsim.timeline.cost import Cost, Situation, transfer_s
from netsim.timeline.link_table import Array, Paths, Ranks
from netsim.timeline.transport import SharedHost

ELEMENT_BYTES = 4
"""An all-reduce of one number is not cut into pieces."""

_COUPLED = 4
"""Neighbours that wait for one another, round after round, go on as slowly as the latest of about
four: with exponential times a round takes twice their mean (Rost 1981, last-passage percolation),
the latest of three 1.83 times, of four 2.08 times.
"""


def ring(
    situation: Situation,
    num_bytes: float,
    num_pieces: int,
    segment_bytes: float | None = None,
    num_phases: int = 1,
) -> Cost:
    """`num_pieces` times, every participant hands a piece on to the next; a segment of it can be
    handed on only when it has come. It begins anew in each of `num_phases`.

        T = (num_hops - 1) hop + longest m + 2 d, or d without a rendezvous

    where B is what goes in one hop (`_hops_a_piece`), and m what all streams' parts of it take on a
    link: B / R, or longer by windows and losses. `_hop_s` has the time of a hop.
    """
    transport, ranks = situation.transport, situation.ranks
    following = np.roll(ranks, -1)
    hops_a_piece = _hops_a_piece(situation, num_bytes, segment_bytes)
    num_bytes, num_hops = num_bytes / hops_a_piece, num_pieces * hops_a_piece
    there = situation.table.paths(ranks, following)
    back = situation.table.paths(following, ranks)
    delay_s = situation.delay_s(there, num_bytes)
    note_s = situation.note_s(back)
    rtt_s = delay_s + note_s
    num_coupled = _num_coupled(situation)
    rate = situation.rate(there, rtt_s)
    piece_s = situation.message_s(there, num_bytes, rtt_s, 1, num_coupled)
    busy_s = situation.busy_s(ranks, following, num_hops * num_bytes)
    hop_s = _hop_s(situation, there, num_bytes, delay_s, note_s, float(piece_s.max()))
    last_s = float((piece_s + delay_s + note_s * transport.rendezvous).max())
    hops_s = (num_hops - 1) * hop_s if num_hops > 1 else 0.0  # hop_s may be infinite
    cold_s = situation.cold_s(there, num_bytes, rate, rtt_s)
    lost_s = situation.recovery_s(there, num_bytes, rate, rtt_s, num_coupled)
    hops_s += num_hops * float(lost_s.max())
    hops_s += streams.latest_s(situation, there, num_bytes, num_hops, rtt_s, num_coupled)
    hops_a_phase = num_hops / num_phases
    words_s = num_phases * _first_words_s(situation, num_bytes, piece_s, hops_a_phase, hop_s)
    num_posted = num_hops * transport.num_segments * situation.streams
    return Cost(
        seconds=hops_s + words_s + last_s + float(cold_s.max()) + transport.operation_s,
        drain_s=float(delay_s.max()),
        busy_s=busy_s,
        num_messages=len(ranks) * num_posted,
        num_in_turn=(len(ranks) + 1) / 2 * num_posted,
        sent_bytes=situation.sent(num_hops * num_bytes),
        rtt_s=float(rtt_s.max()),
        windows=situation.opened(there.rate, num_bytes, rate, rtt_s),
    )


def _num_coupled(situation: Situation) -> int:
    return min(len(situation.ranks), _COUPLED)


def _hop_s(
    situation: Situation,
    there: Paths,
    num_bytes: float,
    delay_s: Array,
    note_s: Array,
    slowest_s: float,
) -> float:
    """From one hop of a ring to the next, whose slowest link takes `slowest_s` for its bytes.

    Streams take turns on the link, but wait for their own windows side by side: a segment takes
    s = B / (p k R) seconds, or a p-th of what its stream alone needs for its part of B where
    windows are full or packets lost. With a rendezvous the next segment on a link waits for the
    one p before it to arrive, 2 d in all, and for word of that. In step, this word leaves at the
    moment in which another segment of its worker does: whether it comes before or after it, w = 0
    or s, is chance where s is more than d, and it comes first where s is less. w = s^2 / (s + d)
    is what was measured between the two.

        hop    = max(longest m, mean over the ring of s + 2 d + w)      with rendezvous
        hop    = max(longest m, mean over the ring of s + d)            without

    The mean over the ring and the slowest link are the cycles of the graph of events, whose largest
    cycle mean is the period in the long run (Baccelli et al. 1992, Synchronization and Linearity).
    """
    transport = situation.transport
    alone, part_bytes = replace(situation, streams=1), num_bytes / situation.streams
    part_s = alone.message_s(there, part_bytes, delay_s + note_s, 1, _num_coupled(situation))
    segment_s = part_s / transport.num_segments
    around_s = segment_s + delay_s
    if transport.rendezvous:
        around_s += note_s + segment_s / (1 + note_s / np.maximum(segment_s, 1e-9))
    return max(slowest_s, float(around_s.mean()))


def _first_words_s(
    situation: Situation, num_bytes: float, piece_s: Array, num_hops: float, hop_s: float
) -> float:
    """By how much a slow worker makes a phase of a ring longer. While its sends are not handed over
    it does not begin a phase. Then it begins earlier than the worker after it, which waits for what
    it still has to send. The first piece for the slow worker comes faster than its downlink takes
    it, q seconds early, and the other's word waits behind it:

        T of a phase = largest of num_hops hop, q + num_hops m of the slow worker's uplink

    A send is handed over at once if sockets take all of a segment on each stream: then the slow
    worker begins each phase by as much earlier, and loses nothing.
    """
    transport, table, ranks = situation.transport, situation.table, situation.ranks
    is_held = num_bytes / transport.num_segments > transport.socket_bytes
    if not transport.rendezvous or not is_held or hop_s == math.inf:
        return 0.0
    crossed = table.crossed(np.roll(ranks, 1), ranks)
    comes_s = transfer_s(num_bytes, table.rates[crossed[:2]].min(0))
    early_s = np.maximum(transfer_s(num_bytes, table.rates[crossed[-1]]) - comes_s, 0)
    late_s = np.where(early_s > 0, early_s + num_hops * (piece_s - hop_s), 0)
    return max(float(late_s.max()), 0.0)


def _hops_a_piece(situation: Situation, num_bytes: float, segment_bytes: float | None) -> float:
    """A piece that is longer than p segments on each stream goes in several hops, since no more
    than p are in flight: then what goes in one is at most p segments long on each stream.
    """
    if segment_bytes is None:
        return 1
    num_segments = math.ceil(num_bytes / situation.streams / segment_bytes)
    return max(num_segments / situation.transport.num_segments, 1)


def all_reduce(situation: Situation, num_bytes: float) -> Cost:
    """A ring of 2 (n - 1) pieces of B / n (Patarasuk and Yuan 2009), or a faster tree; up to
    `halving_doubling_bytes` by halving and doubling.
    """
    num_workers = len(situation.ranks)
    if num_bytes <= situation.transport.halving_doubling_bytes:
        return halving_doubling.all_reduce(situation, num_bytes)
    if num_bytes <= ELEMENT_BYTES:
        around = _one_number(situation, num_bytes)
    else:
        around = ring(
            situation,
            num_bytes / num_workers,
            2 * (num_workers - 1),
            situation.transport.segment_bytes,
            num_phases=2,
        )
    if not situation.transport.has_trees:
        return around
    seconds = _double_tree_s(situation, num_bytes)
    return replace(around, seconds=min(seconds, around.seconds))


def pairs(situation: Situation, num_bytes: float) -> Cost:
    """Every participant sends B bytes to each of the others, all at the same time.

        T = largest (bytes on a link / its rate) + min(B, straggling bytes) / R + 2 d

    With a rendezvous; without, one d less. A worker posts its messages one after the other:
    where these are small, that takes longer than their bytes. The paths are taken to be as long
    as the longest. Flows do not share a link evenly: when the first is done, the last still has
    so much to move. A link that is slower than all others is busy meanwhile, and has nothing to
    move only while its last flow waits at the other end, as long as these bytes take there, by that
    end's rate or by the windows of the flows.
    """
    transport, ranks = situation.transport, situation.ranks
    others = len(ranks) - 1
    path = situation.table.worst_path(ranks)
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.note_s(path)
    rtt_s = delay_s + note_s
    busy_s = _pairwise_busy_s(situation, num_bytes)
    num_messages = len(ranks) * others * situation.streams
    all_flows = situation.rate(path, rtt_s, others, others)
    straggling_bytes = min(num_bytes, transport.straggling_bytes) if others > 1 else 0
    message_s = situation.message_s(path, num_bytes, rtt_s, others, num_messages, others)
    moving_s = max(float(busy_s.max()), float(message_s))
    last_flows = situation.rate(_at_other_end(situation, path), rtt_s, others, others)
    moving_s += float(transfer_s(straggling_bytes, last_flows))
    cold_s = situation.cold_s(path, num_bytes, all_flows / others, rtt_s, others)
    begin_s = note_s * transport.rendezvous + transport.operation_s
    moving_s = max(moving_s, situation.posting_s(others))
    lost_s = situation.recovery_s(
        path, num_bytes, all_flows / others, rtt_s, num_messages, notes_lead=True
    )
    return Cost(
        seconds=float(begin_s + moving_s + delay_s + cold_s + lost_s),
        drain_s=float(delay_s),
        busy_s=busy_s,
        num_messages=num_messages,
        sent_bytes=situation.sent(others * num_bytes),
        rtt_s=float(rtt_s),
        windows=situation.opened(path.rate, num_bytes, all_flows, rtt_s, others),
    )


def _at_other_end(situation: Situation, path: Paths) -> Paths:
    """The path where its slow link is as fast as those at the other ends of its flows, with a queue
    and a burst of as many milliseconds.
    """
    faster = 1 / situation.table.evenness(situation.ranks)
    return replace(
        path,
        rate=path.rate * faster,
        queue_bytes=path.queue_bytes * faster,
        burst_bytes=path.burst_bytes * faster,
    )


def exchange(situation: Situation, num_bytes: float, senders: Ranks) -> Cost:
    """Worker r receives B bytes from `senders[r]`, all at the same time.

    T[r] = largest (bytes on a link of its path / the link's rate) + d
    """
    transport, table, ranks = situation.transport, situation.table, situation.ranks
    path = table.paths(senders, ranks)
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.note_s(table.paths(ranks, senders))
    rtt_s = delay_s + note_s
    moves = senders != ranks
    busy_s = situation.busy_s(senders[moves], ranks[moves], num_bytes)
    num_parts = max(min(int(moves.sum()), _COUPLED), 1) * situation.streams
    rate = situation.rate(path, rtt_s)
    message_s = situation.message_s(path, num_bytes, rtt_s, 1, num_parts)
    moving_s = np.maximum(busy_s[table.crossed(senders, ranks)].max(0), message_s)
    cold_s = situation.cold_s(path, num_bytes, rate, rtt_s)
    lost_s = situation.recovery_s(path, num_bytes, rate, rtt_s, num_parts)
    held_bytes = max(num_bytes - transport.socket_bytes, 0)
    return Cost(
        seconds=np.where(moves, transport.operation_s + moving_s + delay_s + cold_s + lost_s, 0),
        drain_s=delay_s,
        busy_s=busy_s,
        num_messages=int(moves.sum()) * situation.streams,
        sent_bytes=situation.sent(num_bytes * moves),
        notice_s=note_s * transport.rendezvous,
        handover_s=np.where(moves, transfer_s(held_bytes, rate), 0),
        rtt_s=float(rtt_s.max()),
        windows=situation.opened(path.rate, num_bytes, rate, rtt_s),
    )


def share_host(cost: Cost, host: SharedHost) -> Cost:
    """The cost where all workers share a host: no less than this is busy with it.

    The switch carries one message after the other, and none of them is on its way meanwhile: what
    an operation's messages wait for adds to its time. Messages of one hop of a ring come to it at
    once, so one waits for half of the others on the mean; elsewhere the last one counts, which
    waits for all. Bytes move while others are on the links.
    """
    host_s = host.seconds(float(cost.sent_bytes.sum()), cost.num_messages)
    in_turn = cost.num_messages if cost.num_in_turn is None else cost.num_in_turn
    carrying_s = host.seconds(0, in_turn) if host.has_switch else 0.0
    return replace(cost, seconds=np.maximum(cost.seconds + carrying_s, host_s), host_s=host_s)


def _one_number(situation: Situation, num_bytes: float) -> Cost:
    """One number goes around nearly twice, a packet a hop, and waits for the repair of those that
    are lost; every receiver is ready from the start.
    """
    ranks, num_hops = situation.ranks, 2 * (len(situation.ranks) - 1)
    following = np.roll(ranks, -1)
    there = situation.table.paths(ranks, following)
    delay_s = situation.note_s(there)
    note_s = situation.note_s(situation.table.paths(following, ranks))
    rtt_s = delay_s + note_s
    rate = situation.rate(there, rtt_s)
    lost_s = situation.recovery_s(there, num_bytes, rate, rtt_s, 1, notes_lead=True)
    hop_s = delay_s + np.where(there.loss < 1, lost_s, np.inf)
    first_s = float(note_s.max()) * situation.transport.rendezvous
    return Cost(
        seconds=first_s + num_hops * float(hop_s.mean()) + situation.transport.operation_s,
        drain_s=float(delay_s.max()),
        busy_s=situation.busy_s(ranks, following, num_bytes),
        num_messages=num_hops,
        sent_bytes=situation.sent(num_bytes * num_hops / len(ranks)),
        rtt_s=float(rtt_s.max()),
        windows=situation.windows,
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
    moving_s = 2 * transfer_s(num_bytes, rate)
    return float(num_levels * delay_s + moving_s) + situation.transport.operation_s


def _pairwise_busy_s(situation: Situation, num_bytes: float) -> Array:
    """`[links]`: everyone sends as much to everyone else."""
    table, ranks = situation.table, situation.ranks
    num_messages = np.zeros(table.num_links)
    num_messages[ranks] = num_messages[table.world_size + ranks] = len(ranks) - 1
    inside = np.bincount(table.nodes[ranks], minlength=table.num_nodes)
    num_messages[2 * table.world_size :] = np.tile(inside * (len(ranks) - inside), 2)
    return num_messages * num_bytes / table.rates
