"""What messages take whose bursts overflow the queue of a link.

    Q  bytes of a link's queue              R  rate of the link     k  flows that share the link
    b  bytes that a host sends at once      S  a segment            T  round trip
    e  excess: the part of what a host sends on that comes sooner than it leaves, 1 - R / the host's
       own rate; 0 where that is R, 1 where nothing shapes the host

A flow has a window in flight. A queue that overflows keeps it small:

- What a host sends at once, its token bucket lets pass: b, of all its flows together. The rest of a
  window W follows at the host's own rate, so b + e (W - b) stand in the queue at the most (Cruz
  1991, A calculus for network delay). The largest window that finds room is

      F = Q                     where Q < b
      F = b + (Q - b) / e       elsewhere, so all where the link is no slower than the host

  Of more, what finds no room is lost, and windows shrink to 0.7 (CUBIC's) until they fit. So a
  message begins with a window anywhere between 0.7 and 1 times F + S. Of n messages the slowest
  counts, whose window is 0.7 + 0.3 / (n + 1) of it on the mean.
- Bursts of several hosts meet at a receiver's link. On the mean about a half of m hosts do so at
  once: (m + 1) / 2 bursts.
- All windows together are 1.5 R T at the most (`throughput.STANDING_WINDOW`), so a queue in which
  as much finds room never overflows, nor does one that takes the messages.
- Windows grow by a part of a segment a round trip (RFC 9438, 4.3: 3 (1 - 0.7) / (1 + 0.7)), up to
  what stands in the long run. That is 2.5 (F + S) where this is a small part of what the link
  holds, and R T where it is a large one:

      standing = R T (1 + (R T / (2.5 (F + S)))^1.5)^(-2/3)

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
    num_bytes: float | NDArray[np.float64],
    rate: ArrayLike,
    rtt_s: ArrayLike,
    queue_bytes: ArrayLike,
    burst_bytes: ArrayLike,
    excess: ArrayLike,
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
        burst_bytes: b.
        excess: e.
        num_flows: k, which have a message each.
        num_messages: n, the slowest of which counts.
        num_senders: m, hosts that send to one receiver at the same time.
        segment: S.
    """
    if algorithm == "bbr":
        return np.zeros(())
    rtt_s = np.asarray(rtt_s)
    room = room_bytes(queue_bytes, burst_bytes, excess, num_senders)
    overflows = _overflows(num_flows * num_bytes, rate, rtt_s, room, segment)
    if not overflows.any():
        return np.zeros(overflows.shape)
    own_room = room_bytes(queue_bytes, burst_bytes, excess)
    is_lone = own_room < _in_flight(rate, rtt_s)
    standing = np.where(overflows, standing_bytes(rate, rtt_s, room, segment) / num_flows, 1.0)
    kept = _KEPT.get(algorithm or "cubic", _KEPT["cubic"])
    fits = (kept + (1 - kept) / (num_messages + 1)) * (own_room + segment) / num_flows
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
    excess: ArrayLike,
    num_senders: int = 1,
    segment: float = SEGMENT_BYTES,
) -> NDArray[np.float64]:
    """Bytes per second of all flows together in the long run; arguments as for `message_s`."""
    rate, rtt_s = np.asarray(rate), np.asarray(rtt_s)
    if algorithm == "bbr":
        return rate
    room = room_bytes(queue_bytes, burst_bytes, excess, num_senders)
    if room.min() == math.inf:
        return rate
    overflows = _overflows(math.inf, rate, rtt_s, room, segment)
    with np.errstate(divide="ignore", invalid="ignore"):
        windows = standing_bytes(rate, rtt_s, room, segment) / rtt_s
    return np.where(overflows, windows, rate)


def room_bytes(
    queue_bytes: ArrayLike, burst_bytes: ArrayLike, excess: ArrayLike, num_senders: int = 1
) -> NDArray[np.float64]:
    """F, of all flows together, where the bursts of `num_senders` hosts meet."""
    queue, excess = np.asarray(queue_bytes), np.asarray(excess)
    bursts = (num_senders + 1) / 2 * np.asarray(burst_bytes)
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = np.where(excess > 0, (queue - bursts) / excess, math.inf)
        return np.where(queue < bursts, queue, bursts + behind)


def standing_bytes(
    rate: ArrayLike, rtt_s: ArrayLike, room: ArrayLike, segment: float = SEGMENT_BYTES
) -> NDArray[np.float64]:
    """What all flows together have in flight in the long run, over a queue in which `room`, F, and
    no more finds room.
    """
    with np.errstate(invalid="ignore"):
        held = np.asarray(rate) * np.asarray(rtt_s)
        ratio = held / (_STANDING_QUEUES * (np.asarray(room) + segment))
        return held * (1 + ratio**_BEND) ** (-1 / _BEND)


def _in_flight(rate: ArrayLike, rtt_s: ArrayLike) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return STANDING_WINDOW * np.asarray(rate) * np.asarray(rtt_s)


def _overflows(
    num_bytes: float | NDArray[np.float64],
    rate: ArrayLike,
    rtt_s: ArrayLike,
    room: NDArray,
    segment: float,
) -> NDArray[np.bool_]:
    """Whether some of `num_bytes`, of all flows together, may find the queue full."""
    return (room < _in_flight(rate, rtt_s)) & (room + segment < num_bytes)


def _rounds(
    num_bytes: float | NDArray[np.float64], first: NDArray, standing: NDArray, growth: float
) -> NDArray[np.float64]:
    """Windows of `first`, `first + growth` and so on, up to `standing`, that make `num_bytes`: the
    solution r of first r + growth r (r - 1) / 2 = num_bytes, as long as the window grows.
    """
    until = (standing - first) / growth
    before = first - growth / 2
    grown = before * until + growth / 2 * until**2
    growing = (np.sqrt(before**2 + 2 * growth * num_bytes) - before) / growth
    return np.where(num_bytes <= grown, growing, until + (num_bytes - grown) / standing)
