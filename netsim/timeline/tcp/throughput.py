"""What TCP makes of a link: the rate under loss, and the waits for lost packets. `windows` has how
windows open and close.

Bytes are payload; arrays broadcast.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netsim.conditions.link import segment_bytes

SEGMENT_BYTES = segment_bytes()
"""TCP's data in a full frame of the usual MTU."""

INITIAL_WINDOW_SEGMENTS = 10
"""RFC 6928."""
INITIAL_WINDOW_BYTES = INITIAL_WINDOW_SEGMENTS * SEGMENT_BYTES

STANDING_WINDOW = 1.5
"""Bandwidth-delay products that a flow without loss keeps in flight: HyStart (Ha and Rhee 2011)
ends the doubling when a queue shows, between one product and two."""

MIN_RTO_S = 0.2
"""The least retransmission timeout of Linux, less the round trip."""

_FILLED, _ADVERTISED = 2 / 3, 1 / 2
_CUBIC_C, _CUBIC_BETA = 0.4, 0.7
_WINDOW_DEVIATION = 0.3


def socket_window_bytes(wmem_max_bytes: float, rmem_max_bytes: float) -> float:
    """What a connection has in flight at the most, by the maxima of `tcp_wmem` and `tcp_rmem`: two
    thirds of its send buffer, since a writer that waits goes on when a third is free (Linux,
    sk_stream_is_writeable), or half of its receive buffer, whose other half Linux keeps for what it
    stores beside the data (tcp_adv_win_scale = 1).

    A send buffer of 4 MiB carried 225 Mbit/s over a round trip of 100 ms; two thirds are 224.
    """
    return min(_FILLED * wmem_max_bytes, _ADVERTISED * rmem_max_bytes)


LINUX_WMEM_BYTES, LINUX_RMEM_BYTES = 4 << 20, 6 << 20
"""The defaults of Linux (Documentation/networking/ip-sysctl.rst)."""
LINUX_WINDOW_BYTES = socket_window_bytes(LINUX_WMEM_BYTES, LINUX_RMEM_BYTES)


def loss_limited_rate(
    algorithm: str | None,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    loss: ArrayLike,
    num_flows: int = 1,
    max_window_bytes: float = math.inf,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """Bytes per second of `num_flows` flows together in their steady state. Each flow reaches:

        reno   MSS / RTT * sqrt(3 / (2 p))                         Mathis et al. 1997
        cubic  MSS / RTT * (C (3 + b) / (4 (1 - b)) (RTT / p)^3)^(1/4), C = 0.4, b = 0.7,
               or reno's where that is more                        RFC 9438, sections 5, 4.3
        bbr    rate * (1 - p)       it does not take a loss for congestion while p is small

    None of them more than bbr's, nor than a full window each round trip. Another algorithm, or
    None, counts as cubic.

    Args:
        algorithm: of congestion control.
        rate: of the link, bytes per second; inf: unshaped.
        rtt_s: round trip.
        loss: p, the probability of losing a packet; at 1 nothing ever arrives.
        num_flows: that share the link.
        max_window_bytes: that each flow has in flight at the most.
        segment: MSS, bytes of data in a full frame.
    """
    window = np.minimum(lossy_window_bytes(algorithm, rtt_s, loss, segment), max_window_bytes)
    with np.errstate(divide="ignore", over="ignore"):
        flows = num_flows * window / np.asarray(rtt_s)
    return np.minimum(goodput(rate, loss), flows)


def goodput(rate: ArrayLike, loss: ArrayLike) -> NDArray[np.float64]:
    """The rate of data that arrives under loss; 0 at a loss of 1."""
    rate, loss = np.asarray(rate), np.asarray(loss)
    with np.errstate(invalid="ignore"):
        return np.where(loss < 1, rate * (1 - loss), 0.0)


def lossy_window_bytes(
    algorithm: str | None, rtt_s: ArrayLike, loss: ArrayLike, segment: float = SEGMENT_BYTES
) -> NDArray[np.float64]:
    """The mean window, bytes, of a flow that loses packets at random (`loss_limited_rate`); inf
    without loss, and for bbr.
    """
    rtt_s, loss = np.asarray(rtt_s), np.asarray(loss)
    is_bounded = (loss > 0) & (algorithm != "bbr")
    if not is_bounded.any():
        return np.full(np.broadcast_shapes(rtt_s.shape, loss.shape), np.inf)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        segments = np.sqrt(1.5 / loss)
        if algorithm != "reno":
            ratio = _CUBIC_C * (3 + _CUBIC_BETA) / (4 * (1 - _CUBIC_BETA))
            segments = np.maximum(segments, (ratio * (rtt_s / loss) ** 3) ** 0.25)
    return np.where(is_bounded, segments * segment, np.inf)


def message_s(
    algorithm: str | None,
    num_bytes: float | NDArray[np.float64],
    rate: ArrayLike,
    rtt_s: ArrayLike,
    loss: ArrayLike,
    num_flows: int = 1,
    num_messages: int = 1,
    max_window_bytes: float = math.inf,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """Seconds in which the slowest of several messages has left, each by a flow of its own: as long
    as the link takes for them, or as a window takes that leaves once in a round trip. With W for
    the mean window under loss and V for `max_window_bytes`:

        max(flows B / rate,
            flows H / rate + (B - H) RTT / W,                H = min(B, W / 2)
            w RTT + flows (B - w V) / rate)                  w = ceil(B / V) - 1
        + (B - H) RTT / W * (slowest - 1)

    A message of B / W windows needs a round trip fewer than windows, rounded up, which is B / W
    less a half on the mean. V does not vary, so its windows are counted. The slowest still has its
    part to send, at its own rate, when the link has carried the others.

    Args:
        algorithm: of congestion control.
        num_bytes: B, of each message.
        rate: of the link, bytes per second; inf: unshaped.
        rtt_s: round trip.
        loss: p, the probability of losing a packet.
        num_flows: that share the link.
        num_messages: the slowest of them counts, see `slowest`.
        max_window_bytes: that each flow has in flight at the most.
        segment: bytes of data in a full frame.
    """
    head, rounds_s = lossy_rounds(algorithm, num_bytes, rtt_s, loss, segment)
    late_s = rounds_s * (slowest(num_bytes, loss, num_messages, segment) - 1)
    carried = goodput(rate, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_link_s, head_s = num_flows * num_bytes / carried, num_flows * head / carried
        seconds = np.maximum(by_link_s, head_s + rounds_s)
    full_s = _full_windows_s(num_bytes, carried, rtt_s, num_flows, max_window_bytes)
    return np.where(num_bytes > 0, np.maximum(seconds, full_s) + late_s, 0.0)


def lossy_rounds(
    algorithm: str | None,
    num_bytes: float | NDArray[np.float64],
    rtt_s: ArrayLike,
    loss: ArrayLike,
    segment: float = SEGMENT_BYTES,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """H of `message_s`, bytes, and the seconds of a message's windows after it, on the mean."""
    window = lossy_window_bytes(algorithm, rtt_s, loss, segment)
    head = np.minimum(num_bytes, window / 2)
    return head, (num_bytes - head) / window * np.asarray(rtt_s)


def _full_windows_s(
    num_bytes: float | NDArray[np.float64],
    rate: ArrayLike,
    rtt_s: ArrayLike,
    num_flows: int,
    window_bytes: float,
) -> NDArray[np.float64]:
    """Seconds in which a message leaves of which only a window is ever in flight. The first byte of
    each window leaves a round trip after the first byte of the window before it, since only then
    room has been acknowledged.
    """
    num_waits = np.maximum(np.ceil(np.divide(num_bytes, window_bytes)) - 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        last_bytes = num_bytes - np.where(num_waits > 0, num_waits * window_bytes, 0)
        last_s = num_flows * last_bytes / np.asarray(rate)
    return num_waits * np.asarray(rtt_s) + last_s


def slowest(
    num_bytes: float | NDArray[np.float64],
    loss: ArrayLike,
    num_messages: int,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """The time of the slowest of several messages under loss, as a multiple of their mean time.

    Packets are lost at random, so the number k of packets between two losses is exponential. A
    window that grows equally each round trip needs a time like sqrt(k) for k packets. Over the np
    losses of n packets (renewal reward) the time deviates by sqrt(4 / pi - 1) / sqrt(np) of its
    mean. The time of a message too short for a loss deviates as much as the window at a random
    time.

        1 + E[largest of m normal] * min(0.3, sqrt(4 / pi - 1) / sqrt(np))

    0.3 is what a simulated CUBIC window has (0.30 to 0.31 for p = 0.1 to 1 %).
    """
    return 1 + largest_normal(num_messages) * deviation(num_bytes, loss, segment)


def deviation(
    num_bytes: float | NDArray[np.float64], loss: ArrayLike, segment: float = SEGMENT_BYTES
) -> NDArray[np.float64]:
    """By how much the time of messages under loss deviates from their mean time, see `slowest`."""
    num_losses = np.maximum(num_bytes / segment * np.asarray(loss), np.finfo(float).tiny)
    return np.minimum(_WINDOW_DEVIATION, math.sqrt(4 / math.pi - 1) / np.sqrt(num_losses))


@lru_cache(maxsize=256)
def largest_normal(num_draws: int) -> float:
    """The largest of several draws from a normal distribution of mean 0 and deviation 1, on the
    mean (Blom 1958, Statistical Estimates and Transformed Beta-Variables).
    """
    return max(NormalDist().inv_cdf((num_draws - 0.375) / (num_draws + 0.25)), 0.0)


def recovery_wait_s(
    num_bytes: ArrayLike,
    window_bytes: ArrayLike,
    rtt_s: ArrayLike,
    loss: ArrayLike,
    num_messages: int = 1,
    num_notes: int = 0,
    segment: float = SEGMENT_BYTES,
    power: int = 1,
) -> NDArray[np.float64]:
    """Average seconds by which losses delay the last of several messages sent at the same time. One
    message of n segments is late by

        RTT          if any but its last is lost: the next ones tell (RFC 8985, RACK)
        2 RTT        if its last is lost: a probe tells, after as long (the same, TLP)
        RTT + 0.2 s  if the probe is lost, too; or of a note, which is one packet: Linux waits for
                     the timeout, since the acknowledgement of one packet may be delayed

    A packet that is lost more than a window before the end is repaired while others follow. With
    S(t) for the probability that one message is later than t:

        E[latest of m] = integral of 1 - (1 - S(t))^m dt

    Args:
        num_bytes: of each message.
        window_bytes: that are in flight.
        rtt_s: round trip.
        loss: p, the probability of losing a packet.
        num_messages: m.
        num_notes: of one packet each, sent at the same time.
        segment: bytes of data in a full frame.
        power: 2 for the average of the squares.
    """
    rtt_s, loss = np.asarray(rtt_s), np.asarray(loss)
    if not loss.any():
        return np.zeros(np.broadcast_shapes(np.shape(num_bytes), rtt_s.shape, loss.shape))
    num_segments = np.maximum(np.minimum(num_bytes, window_bytes) / segment, 1)
    later_than = (1 - (1 - loss) ** num_segments, loss, loss**2)
    waits_s = (rtt_s, 2 * rtt_s, np.maximum(rtt_s + MIN_RTO_S, 2 * rtt_s))
    expected_s, before_s = np.zeros(()), np.zeros(())
    for probability, wait_s in zip(later_than, waits_s, strict=True):
        in_time = (1 - probability) ** num_messages * (1 - loss) ** num_notes
        expected_s = expected_s + (1 - in_time) * (wait_s**power - before_s**power)
        before_s = wait_s
    return np.asarray(expected_s)
