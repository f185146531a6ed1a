"""What messages take whose bursts overflow the queue of a link.

    Q  bytes of a link's queue              R  rate of the link     k  flows that share the link
    b  bytes that a host sends at once      S  a segment            T  round trip

A flow has a window in flight. A queue that overflows keeps it small:

- What a host sends at once, its token bucket lets pass: b, of all its flows together. Where that is
  more than Q, what finds no room is lost, and windows shrink to 0.7 (CUBIC's) until the burst fits.
  So a message begins with a window anywhere between 0.7 and 1 times Q + S. Of n messages the
  slowest counts, whose window is 0.7 + 0.3 / (n + 1) of it on the mean. On a link that is slower
  than the one before it, all that is in flight comes at once.
- Bursts of several hosts meet at a receiver's link. On the mean about a half of m hosts do so at
  once: (m + 1) / 2 bursts.
- All windows together are 1.5 R T at the most (`throughput.STANDING_WINDOW`), so a queue that
  holds as much never overflows, nor does one that holds the messages.
- Windows grow by a part of a segment a round trip (RFC 9438, 4.3: 3 (1 - 0.7) / (1 + 0.7)), up to
  what stands in the long run. That is 2.5 (Q + S) where this is a small part of what the link
  holds, and R T where it is a large one:

      standing = R T (1 + (R T / (2.5 (Q + S)))^1.5)^(-2/3)

The half, 2.5 and 1.5 are no theory: `python -m netsim calibrate --queues` measures what they were
chosen by.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netsim.timeline.tcp.throughput import SEGMENT_BYTES, STANDING_WINDOW

_GROWTHS = {"reno": 1.0, "cubic": 3 * (1 - 0.7) / (1 + 0.7)}
_KEPT = {"reno": 0.5, "cubic": 0.7}
_STANDING_QUEUES, _BEND = 2.5, 1.5


def message_s(
    algorithm: str | None,
    num_bytes: float,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    queue_bytes: ArrayLike,
    burst_bytes: ArrayLike,
    num_flows: int = 1,
    num_messages: int = 1,
    num_senders: int = 1,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """Seconds in which messages leave of which windows go out, one each round trip; 0 where their
    queue does not overflow, and for bbr, which sends no bursts.

    The bytes of a window's last round leave in its first half on the mean. Where hosts' bursts meet
    that would fit one by one, windows stand as in the long run from the start, and a round trip
    repairs what is lost at the end.

    Args:
        algorithm: of congestion control; None counts as cubic.
        num_bytes: of each message.
        rate: R, bytes per second.
        rtt_s: T.
        queue_bytes: Q; inf: unshaped.
        burst_bytes: b; inf: all that is in flight.
        num_flows: k, which have a message each.
        num_messages: n, the slowest of which counts.
        num_senders: m, hosts that send to one receiver at the same time.
        segment: S.
    """
    if algorithm == "bbr":
        return np.zeros(())
    queue, rtt_s = np.asarray(queue_bytes), np.asarray(rtt_s)
    overflows = _overflows(
        num_flows * num_bytes, rate, rtt_s, queue, burst_bytes, num_senders, segment
    )
    if not overflows.any():
        return np.zeros(overflows.shape)
    is_lone = queue < np.asarray(burst_bytes)
    standing = np.where(overflows, standing_bytes(rate, rtt_s, queue, segment) / num_flows, 1.0)
    kept = _KEPT.get(algorithm or "cubic", _KEPT["cubic"])
    fits = (kept + (1 - kept) / (num_messages + 1)) * (queue + segment) / num_flows
    first = np.where(is_lone & overflows, np.minimum(fits, standing), standing)
    growth = segment * _GROWTHS.get(algorithm or "cubic", _GROWTHS["cubic"])
    rounds = _rounds(num_bytes, first, standing, growth)
    return np.where(overflows, (np.maximum(rounds - 0.5, 0) + ~is_lone) * rtt_s, 0.0)


def limited_rate(
    algorithm: str | None,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    queue_bytes: ArrayLike,
    burst_bytes: ArrayLike,
    num_senders: int = 1,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """Bytes per second of all flows together in the long run; arguments as for `message_s`."""
    rate, rtt_s = np.asarray(rate), np.asarray(rtt_s)
    if algorithm == "bbr":
        return rate
    overflows = _overflows(math.inf, rate, rtt_s, queue_bytes, burst_bytes, num_senders, segment)
    with np.errstate(divide="ignore", invalid="ignore"):
        windows = standing_bytes(rate, rtt_s, queue_bytes, segment) / rtt_s
    return np.where(overflows, windows, rate)


def standing_bytes(
    rate: ArrayLike, rtt_s: ArrayLike, queue_bytes: ArrayLike, segment: float = SEGMENT_BYTES
) -> NDArray[np.float64]:
    """What all flows together have in flight in the long run, over a queue that overflows."""
    with np.errstate(invalid="ignore"):
        held = np.asarray(rate) * np.asarray(rtt_s)
        ratio = held / (_STANDING_QUEUES * (np.asarray(queue_bytes) + segment))
        return held * (1 + ratio**_BEND) ** (-1 / _BEND)


def _overflows(
    num_bytes: float,
    rate: ArrayLike,
    rtt_s: ArrayLike,
    queue_bytes: ArrayLike,
    burst_bytes: ArrayLike,
    num_senders: int,
    segment: float,
) -> NDArray[np.bool_]:
    """Whether some of `num_bytes`, of all flows together, may find the queue full."""
    with np.errstate(invalid="ignore"):
        in_flight = STANDING_WINDOW * np.asarray(rate) * np.asarray(rtt_s)
    at_once = np.minimum((num_senders + 1) / 2 * np.asarray(burst_bytes), in_flight)
    return (np.asarray(queue_bytes) < at_once) & (np.asarray(queue_bytes) + segment < num_bytes)


def _rounds(
    num_bytes: float, first: NDArray, standing: NDArray, growth: float
) -> NDArray[np.float64]:
    """Windows of `first`, `first + growth` and so on, up to `standing`, that make `num_bytes`: the
    solution r of first r + growth r (r - 1) / 2 = num_bytes, as long as the window grows.
    """
    until = (standing - first) / growth
    before = first - growth / 2
    grown = before * until + growth / 2 * until**2
    growing = (np.sqrt(before**2 + 2 * growth * num_bytes) - before) / growth
    return np.where(num_bytes <= grown, growing, until + (num_bytes - grown) / standing)
