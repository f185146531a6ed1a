"""What TCP makes of a link: the rate that loss leaves it, and the waits of its slow start.

Bytes are payload; arrays broadcast.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netsim.link import FRAME_BYTES

SEGMENT_BYTES = 1448
"""Payload of a full frame, with TCP timestamps."""

WIRE_PER_PAYLOAD = FRAME_BYTES / SEGMENT_BYTES
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES
"""RFC 6928."""

STANDING_WINDOW = 1.5
"""Bandwidth-delay products that a flow without loss keeps in flight: HyStart (Ha and Rhee 2011)
ends the doubling when a queue shows, between one product and two."""

_MIN_RTO_S = 0.2
_CUBIC_C, _CUBIC_BETA = 0.4, 0.7


def loss_limited_rate(
    algorithm: str | None,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    loss: ArrayLike,
    num_flows: int = 1,
) -> NDArray[np.float64]:
    """Bytes per second of so many flows together in their steady state. Each reaches:

        reno   MSS / RTT * sqrt(3 / (2 p))                         Mathis et al. 1997
        cubic  MSS / RTT * (C (3 + b) / (4 (1 - b)) (RTT / p)^3)^(1/4), C = 0.4, b = 0.7,
               or reno's where that is more                        RFC 9438, sections 5, 4.3
        bbr    rate * (1 - p)       it does not take a loss for congestion while p is small

    None of them more than bbr's. Another algorithm, or None, counts as cubic.

    Args:
        algorithm: of congestion control.
        rate: of the link, bytes per second; inf: unshaped.
        rtt_s: round trip.
        loss: p, the probability of losing a packet; at 1 nothing ever arrives.
        num_flows: that share the link.
    """
    rate, rtt_s, loss = np.asarray(rate), np.asarray(rtt_s), np.asarray(loss)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        goodput = np.where(loss < 1, rate * (1 - loss), 0.0)
        if algorithm == "bbr" or not np.any(loss):
            return goodput
        segments = np.sqrt(1.5 / loss)
        if algorithm != "reno":
            ratio = _CUBIC_C * (3 + _CUBIC_BETA) / (4 * (1 - _CUBIC_BETA))
            segments = np.maximum(segments, (ratio * (rtt_s / loss) ** 3) ** 0.25)
        flows = num_flows * segments * SEGMENT_BYTES / rtt_s
        return np.where(loss > 0, np.minimum(goodput, flows), goodput)


def slow_start_wait_s(
    num_bytes: ArrayLike, window_bytes: ArrayLike, rate: ArrayLike, rtt_s: ArrayLike
) -> NDArray[np.float64]:
    """Seconds for which the link idles while the window of a flow opens.

    Each round trip doubles the window W. A round shorter than the round trip waits for the rest of
    it, until the window covers the bandwidth-delay product or the message ends (Kurose and Ross,
    Computer Networking, on the latency of TCP):

        rounds = min(ceil(log2(M / W + 1)) - 1, ceil(log2(rate * RTT / W)))
        wait   = rounds * RTT - (2^rounds - 1) * W / rate
    """
    num_bytes, window, rtt_s = np.asarray(num_bytes), np.asarray(window_bytes), np.asarray(rtt_s)
    rate = np.maximum(rate, np.finfo(float).tiny)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        to_the_end = np.ceil(np.log2(num_bytes / window + 1)) - 1
        to_the_rate = np.where(rtt_s > 0, np.ceil(np.log2(rate * rtt_s / window)), 0)
        rounds = np.maximum(np.minimum(to_the_end, to_the_rate), 0)
    return np.maximum(rounds * rtt_s - (2**rounds - 1) * window / rate, 0)


def opened_window_bytes(num_bytes: float, window_bytes: float, rate: float, rtt_s: float) -> float:
    """The window after a message: twice what was in flight, but no more than the link holds, and
    never less than before.
    """
    return max(window_bytes, min(2 * num_bytes, STANDING_WINDOW * rate * rtt_s))


def idle_window_bytes(
    window_bytes: float, idle_s: float, rtt_s: float, initial_bytes: float = INITIAL_WINDOW_BYTES
) -> float:
    """The window after a pause: halved for each retransmission timeout that passed, down to the
    initial window (RFC 2861, as Linux does it).
    """
    num_halvings = min(max(idle_s, 0) // (_MIN_RTO_S + rtt_s), 64)
    return max(window_bytes / 2**num_halvings, min(window_bytes, initial_bytes))
