"""How the congestion window of a connection opens while it sends, and closes while it does not.

    W  window, bytes      P  what the path holds of a flow: its rate times the round trip
    B  bytes of a message      L  the same of what the link alone would carry of it

Slow start adds what is acknowledged, so that W doubles each round trip, up to a threshold. At first
CUBIC's HyStart is the threshold: it ends the doubling when the acknowledgements of a round take
half a round trip, which is so from W = L / 2 on (Ha and Rhee 2011; Linux, hystart_update). Some
flows get further, but where all wait for the latest of several, that one counts. From there on W
grows by one segment for 20 that are acknowledged (Linux, bictcp_update, until the first loss), as
long as messages fill it, and up to 1.5 P. Other algorithms than CUBIC double it up to P.

Idleness halves W for each retransmission timeout that passes, and raises the threshold to 3/4 of
what W was (Linux, tcp_cwnd_restart and tcp_current_ssthresh). So what steps have added gets lost
between long pauses.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netsim.timeline.tcp.throughput import INITIAL_WINDOW_BYTES, MIN_RTO_S, STANDING_WINDOW

_TRAIN = 0.5
_GROWTH = 1 / 20
_REOPENED = 3 / 4
_LARGE = 1e15
"""Bytes; such a window has no end."""


class Window(NamedTuple):
    """A congestion window, and the threshold up to which it doubles; inf: there is none yet."""

    num_bytes: float
    threshold_bytes: float = math.inf

    def in_segments(self, segment: float) -> "Window":
        """Both in whole segments, as TCP counts them; a part of a segment is a packet, too."""

        def whole(size: float) -> float:
            return math.ceil(size / segment) * segment if size < _LARGE else size

        return Window(whole(self.num_bytes), whole(self.threshold_bytes))


Windows = tuple[Window, ...]
"""One for all connections of an operation, or one for each of its kinds of connections."""


def opening_wait_s(
    algorithm: str | None,
    num_bytes: float | NDArray[np.float64],
    window: Window,
    rate: ArrayLike,
    link_rate: ArrayLike,
    rtt_s: ArrayLike,
) -> NDArray[np.float64]:
    """Seconds for which a message's link idles while the window opens: every round shorter than a
    round trip waits for the rest of it, until W is P or the message ends. With H, the threshold:

        doublings = min(ceil(log2(H / W)), ceil(log2(B / W + 1)) - 1)
        steps     = min(ceil(log_g(P / H)), ceil(log_g((g - 1) B / H + 1)) - 1),     g = 1.05
        wait      = the sum over these rounds of RTT - the round's W / rate

    B of the steps is what the doublings have left of it; they begin a little above H, by a
    twentieth of what the last doubling had beyond it.

    Args:
        algorithm: of congestion control; None counts as cubic.
        num_bytes: B.
        window: at the start.
        rate: of the flow where its window is open, bytes per second; inf: unshaped.
        link_rate: of the link, for this flow; more than `rate` if losses or buffers limit it.
        rtt_s: round trip.
    """
    rate = np.maximum(np.asarray(rate), np.finfo(float).tiny)
    rtt_s = np.asarray(rtt_s)
    held = _product(rate, rtt_s)
    if window.num_bytes >= held.max():  # it is open
        return np.zeros(np.broadcast_shapes(np.shape(num_bytes), held.shape))
    top = np.minimum(held, _threshold(algorithm, window, link_rate, rtt_s))
    num_doublings = _rounds(num_bytes, window.num_bytes, 1.0, top)
    doubled = (2**num_doublings - 1) * window.num_bytes
    reached = doubled + window.num_bytes
    beyond = np.where(num_doublings > 0, np.maximum(reached - top, 0), 0)
    first = reached - (1 - _GROWTH) * beyond
    num_steps = _rounds(num_bytes - doubled, first, _GROWTH, held)
    stepped = ((1 + _GROWTH) ** num_steps - 1) / _GROWTH * first
    wait_s = (num_doublings + num_steps) * rtt_s - (doubled + stepped) / rate
    return np.maximum(wait_s, 0)


def opened(
    algorithm: str | None,
    num_bytes: float,
    window: Window,
    rate: float,
    link_rate: float,
    rtt_s: float,
) -> Window:
    """The window after a message; arguments as for `opening_wait_s`. In slow start it grows to
    twice what was in flight at the most; beyond the threshold no further than what is in flight. An
    endless one stays as it is.
    """
    if window.num_bytes >= _LARGE:
        return window
    before, most = window.num_bytes, STANDING_WINDOW * float(_product(rate, rtt_s))
    threshold = float(_threshold(algorithm, window, link_rate, rtt_s))
    doubled = min(2 * num_bytes, before + num_bytes, most)
    if doubled < threshold:
        return window._replace(num_bytes=max(before, doubled))
    first = max(before, threshold)
    acknowledged = num_bytes - max(threshold - before, 0)
    grown = min(first + _GROWTH * acknowledged, max(first, num_bytes))
    return Window(max(before, min(grown, most)), threshold)


def after_idleness(
    window: Window, idle_s: float, rtt_s: float, initial_bytes: float = INITIAL_WINDOW_BYTES
) -> Window:
    """The window after a pause: halved for each retransmission timeout that passed, down to the
    initial window (RFC 2861, as Linux does it).
    """
    num_halvings = min(max(idle_s, 0) // (MIN_RTO_S + rtt_s), 64)
    if not num_halvings:
        return window
    before, threshold = window
    return Window(
        max(before / 2**num_halvings, min(before, initial_bytes)),
        max(threshold, _REOPENED * before),
    )


def _threshold(
    algorithm: str | None, window: Window, link_rate: ArrayLike, rtt_s: ArrayLike
) -> NDArray[np.float64]:
    if math.isfinite(window.threshold_bytes):
        return np.asarray(window.threshold_bytes)
    has_hystart = algorithm not in ("reno", "bbr")
    return _TRAIN * _product(link_rate, rtt_s) if has_hystart else np.asarray(math.inf)


def _product(rate: ArrayLike, rtt_s: ArrayLike) -> NDArray[np.float64]:
    """0 for no round trip, whatever the rate."""
    rate, rtt_s = np.asarray(rate), np.asarray(rtt_s)
    with np.errstate(invalid="ignore"):
        return np.where(rtt_s > 0, rate * rtt_s, 0.0)


def _rounds(
    num_bytes: ArrayLike, window: ArrayLike, growth: float, top: ArrayLike
) -> NDArray[np.float64]:
    """Until a window that grows by its `growth` each round has come to `top`, or but for the
    message's last round.
    """
    log = math.log(1 + growth)
    with np.errstate(divide="ignore", over="ignore"):
        to_the_top = np.ceil(np.log(np.divide(top, window)) / log)
    parts = np.maximum(np.divide(num_bytes, window), 0) * growth
    to_the_end = np.ceil(np.log1p(parts) / log) - 1
    return np.maximum(np.minimum(to_the_top, to_the_end), 0)
