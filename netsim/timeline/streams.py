"""The latest of several streams that go through a ring on their own.

Each stream is a ring of its own connections and its own threads
(`bagua_algos.communication.stripes`): its next hop waits for none of the others, and all of them
have to be through at the end. Under loss a stream's time is a sum over its hops, which are early
and late by chance. With k streams of h hops:

    T = T of one stream + E[largest of k normal] * deviation of the sum

The sum deviates by as much as all messages of one of its connections together, but for the
neighbours that wait for one another: the latest way through a ring changes between the connections
of about m neighbours, and is as even as the mean of as many: deviation / sqrt(m). The waits for
repairs are independent from hop to hop, so their squares add up. Where they are rare, few of the
streams wait at all, and normal draws are no measure: the largest of k sums that are not negative is
no more than all of them together, k times their mean.
"""

import math

import numpy as np

from netsim.timeline.cost import Situation
from netsim.timeline.link_table import Array, Paths
from netsim.timeline.tcp import throughput


def latest_s(
    situation: Situation,
    paths: Paths,
    num_bytes: float,
    num_hops: float,
    rtt_s: Array,
    num_coupled: int,
) -> float:
    """By how much the latest stream is later than one of them.

    Args:
        situation: of the ring.
        paths: to each worker's neighbour.
        num_bytes: of a piece, on all streams together.
        num_hops: h.
        rtt_s: round trip.
        num_coupled: m.
    """
    if situation.streams == 1 or not paths.loss.any():
        return 0.0
    part_bytes, segment = num_bytes / situation.streams, situation.transport.mss_bytes
    _, rounds_s = throughput.lossy_rounds(
        situation.congestion_control, part_bytes, rtt_s, paths.loss, segment
    )
    of_rounds = throughput.deviation(num_hops * part_bytes, paths.loss, segment)
    rounds_off_s = num_hops * rounds_s * of_rounds / math.sqrt(num_coupled)
    rate = situation.rate(paths, rtt_s)
    wait_s, squared = (
        situation.recovery_s(paths, num_bytes, rate, rtt_s, num_coupled, power) for power in (1, 2)
    )
    largest = throughput.largest_normal(situation.streams)
    most_s = (situation.streams - 1) * num_hops * wait_s / largest
    waits_off = np.minimum(num_hops * np.maximum(squared - wait_s**2, 0), most_s**2)
    return largest * float(np.sqrt(rounds_off_s**2 + waits_off).max())
