"""What a broadcast takes: down a tree, as gloo's, or along a chain, as NCCL's.

Letters as in `netsim.timeline.patterns`, and

    c  bytes of a chunk
"""

import math

import numpy as np

from netsim.timeline.cost import Cost, Situation, transfer_s
from netsim.timeline.link_table import Ranks


def broadcast(situation: Situation, num_bytes: float) -> Cost:
    """The first participant sends B bytes to all others, in the way of its library."""
    if situation.transport.chunk_bytes is None:
        return tree(situation, num_bytes)
    return chain(situation, num_bytes)


def chain(situation: Situation, num_bytes: float) -> Cost:
    """Every participant hands each chunk of the message on to the next as soon as it is there: the
    first chunk passes all n - 1 paths, and the rest comes behind it as fast as the slowest.

        c = min(B, chunk_bytes)
        T = sum over the paths of (c / R + d) + (B - c) / smallest R

    or (n - 2) (c / R + d) + B / R + d over equal paths. It is NCCL's ring from its root to the
    worker before it, for which NCCL has no other algorithm (NVIDIA/nccl, src/device/broadcast.h and
    `ncclPatternPipelineFrom` in src/enqueue.cc). The chunks of several streams follow one another.
    """
    transport, ranks, table = situation.transport, situation.ranks, situation.table
    assert transport.chunk_bytes is not None, transport
    chunk_bytes = min(num_bytes, transport.chunk_bytes)
    path = table.paths(ranks[:-1], ranks[1:])
    delay_s = situation.delay_s(path, chunk_bytes)
    note_s = situation.note_s(table.paths(ranks[1:], ranks[:-1]))
    rtt_s = delay_s + note_s
    rate = situation.rate(path, rtt_s)
    first_s = float(
        (situation.message_s(path, chunk_bytes, rtt_s, 1, situation.streams) + delay_s).sum()
    )
    rest_s = float(transfer_s(num_bytes - chunk_bytes, rate).max())
    cold_s = situation.cold_s(path, num_bytes, rate, rtt_s)
    begin_s = float(note_s.max()) * transport.rendezvous + transport.operation_s
    has_next = ranks != ranks[-1]
    return Cost(
        seconds=begin_s + first_s + rest_s + float(cold_s.max()),
        drain_s=float(delay_s.max()),
        busy_s=situation.busy_s(ranks[:-1], ranks[1:], num_bytes),
        num_messages=(len(ranks) - 1) * math.ceil(num_bytes / chunk_bytes),
        sent_bytes=situation.sent(num_bytes * has_next),
        rtt_s=float(rtt_s.max()),
        windows=situation.opened(path.rate, num_bytes, rate, rtt_s),
    )


def tree(situation: Situation, num_bytes: float) -> Cost:
    """The first participant sends to all by a binomial tree: in round i, each that has the message
    sends it on to 2^i places further. A worker's messages share its link from the start, so that
    each takes as long as all of them together; so do those of a node's workers, which have the
    message at about the same time, on the links between nodes.

        arrival[child] = arrival[parent] + max(bytes on a link / its rate, message) + d

    of the links on the way to the child. A message takes B / R, or longer where windows are full or
    packets lost. Workers whose own links are no faster than the node's have the message one after
    the other: then this is up to 1.7 times too long, beside flows that share links evenly.
    """
    transport, ranks, table = situation.transport, situation.ranks, situation.table
    parents = _parents(len(ranks))
    num_children = np.bincount(parents, minlength=len(ranks))
    path = table.paths(ranks[parents], ranks[1:])
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.note_s(table.paths(ranks[1:], ranks[parents]))
    rtt_s = delay_s + note_s
    rate = situation.rate(path, rtt_s)
    busy_s = situation.busy_s(ranks[parents], ranks[1:], num_bytes)
    links_s = busy_s[table.crossed(ranks[parents], ranks[1:])].max(0)
    cold_s = situation.cold_s(path, num_bytes, rate, rtt_s)
    message_s = situation.message_s(path, num_bytes, rtt_s, 1, situation.streams)
    edge_s = np.maximum(links_s, message_s) + delay_s + cold_s
    arrival_s = np.zeros(len(ranks))
    for child, (parent, seconds) in enumerate(zip(parents, edge_s, strict=True), start=1):
        arrival_s[child] = arrival_s[parent] + seconds
    begin_s = float(note_s.max()) * transport.rendezvous + transport.operation_s
    return Cost(
        seconds=begin_s + float(arrival_s.max()),
        drain_s=float(delay_s.max()),
        busy_s=busy_s,
        num_messages=(len(ranks) - 1) * situation.streams,
        sent_bytes=situation.sent(num_bytes * num_children.astype(float)),
        rtt_s=float(rtt_s.max()),
        windows=situation.opened(path.rate, num_bytes, rate, rtt_s),
    )


def _parents(num_workers: int) -> Ranks:
    """The parents of workers 1 and up in a binomial tree: the worker's number without its highest
    bit.
    """
    return np.array([child - (1 << child.bit_length() - 1) for child in range(1, num_workers)])
