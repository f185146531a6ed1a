"""Proof that a network is what was asked for, by the workers themselves before they train.

Each worker times the round trip to the one before, and all send to the next for the rate: so every
worker's uplink and downlink is measured, and those between nodes. Fast links take TCP. Below
50 Mbit/s, where its large packets are too few, and wherever loss was asked for, which slows TCP
down, these are datagrams. Buffers are ample meanwhile: a small one limits a connection, and the
link is what is measured. All is counted and timed by the kernels, which miss nothing that a busy
process would.
"""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import sqrt

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.errors import BrokenProbeError, ProbeError
from netsim.links import tcp
from netsim.proof import datagrams, round_trip, tcp_rate

MIN_TCP_RATE_MBIT = 50
TOLERANCE_PCT = 5
TOLERANCE_MS = 1
MAX_ROUND_TRIP_S = 5.0
"""A longer one is not proven: a proof takes some twenty of them, for most of which TCP's slow start
goes on."""

LOSS_SIGMAS = 4
"""How far from its mean a loss may be: chance exceeds it once in 16,000 links."""


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """The path from one worker to the next, as asked for and as measured.

    Rates are in 10^6 bits per second with Ethernet headers. None was asked for where unshaped, and
    there none is achieved, either, where the host let too little through to measure it. The round
    trip is the opening of a connection. `num_sent` and `num_lost` count datagrams; None without
    loss.
    """

    sender: int
    receiver: int
    asked_rate_mbit: float | None
    achieved_rate_mbit: float | None
    asked_rtt_ms: float
    achieved_rtt_ms: float
    asked_loss_pct: float
    num_sent: int | None = None
    num_lost: int | None = None

    @property
    def asks(self) -> bool:
        """Whether anything was asked for: an unshaped link is what the host makes of it."""
        return self.asked_rate_mbit is not None or self.asked_rtt_ms > 0 or self.asked_loss_pct > 0

    @property
    def rate_deviation_pct(self) -> float | None:
        """How far the rate is from the one asked for, in per cent; None where none was."""
        if self.asked_rate_mbit is None:
            return None
        assert self.achieved_rate_mbit is not None, "without one the link is refused"
        return tcp_rate.deviation_pct(self.asked_rate_mbit, self.achieved_rate_mbit)

    @property
    def achieved_loss_pct(self) -> float | None:
        """The share of the datagrams that was lost; None without loss."""
        return None if not self.num_sent else 100 * (self.num_lost or 0) / self.num_sent


def round_trip_s(condition: NetworkCondition, num_workers: int) -> float:
    """The longest that was asked for between a worker and the next, as far as jitter may take it.

    Raises:
        ValueError: if a proof would take minutes.
    """
    if num_workers == 1:
        return 0.0
    nexts = [(rank, (rank + 1) % num_workers) for rank in range(num_workers)]
    paths = [(condition.path(*pair), condition.path(*pair[::-1])) for pair in nexts]
    longest_s = max(sum(path.delay_ms + path.jitter_ms for path in both) for both in paths) / 1e3
    if longest_s > MAX_ROUND_TRIP_S:
        raise ValueError(
            f"delay_ms makes round trips of {longest_s:g} s, with which the proof of the network "
            f"would take minutes: choose {MAX_ROUND_TRIP_S:g} s or less there and back together, "
            "or simulate this network."
        )
    return longest_s


def probe(condition: NetworkCondition, rank: int, addresses: list[str]) -> LinkReport | None:
    """Measure the path that leads to this worker from the one before it.

    Every worker has to call it at about the same time. It takes one to three seconds, and twenty
    times the longest round trip.

    Args:
        condition: what was asked for; its links before training begins count.
        rank: this worker.
        addresses: of all the workers, by rank.

    Returns:
        None for a single worker, who has no link to measure.

    Raises:
        BrokenProbeError: if a connection breaks off, or too little comes over one for which a rate
            or a loss was asked. Every worker raises it then, or has measured its link already:
            a worker that fails leaves its connections, and so its neighbours fail.
        ProbeError: if a neighbour does not answer; names it.
        ValueError: as `round_trip_s`.
    """
    if len(addresses) == 1:
        return None
    num_workers = len(addresses)
    sender = (rank - 1) % num_workers
    there, back = condition.path(sender, rank), condition.path(rank, sender)
    ring = [condition.path(r, (r + 1) % num_workers) for r in range(num_workers)]
    asked_rtt_ms = there.delay_ms + back.delay_ms
    longest_s = round_trip_s(condition, num_workers)
    with ExitStack() as stack:
        stack.enter_context(tcp.ample_buffers(condition, num_workers))
        stack.enter_context(round_trip.listen(addresses[rank]))
        joined = tcp_rate.join_ring(rank, addresses, longest_s)
        outgoing, incoming = map(stack.enter_context, joined)
        try:
            rtt_ms = round_trip.first_quartile_ms(addresses[sender], asked_rtt_ms)
            tcp_rate.meet(incoming, outgoing)
            arrivals = _arrivals(ring, rank, addresses, (incoming, outgoing))
        except OSError as error:
            kind = BrokenProbeError if isinstance(error, ConnectionError) else ProbeError
            raise kind(
                f"The probe from worker {sender} or to worker {(rank + 1) % num_workers} broke "
                f"off ({error}): did one of them die?"
            ) from error
    counted = arrivals.num_sent > 0 and there.loss_pct > 0
    return LinkReport(
        sender=sender,
        receiver=rank,
        asked_rate_mbit=there.rate_mbit,
        achieved_rate_mbit=arrivals.rate_mbit,
        asked_rtt_ms=asked_rtt_ms,
        achieved_rtt_ms=rtt_ms,
        asked_loss_pct=there.loss_pct,
        num_sent=arrivals.num_sent if counted else None,
        num_lost=arrivals.num_lost if counted else None,
    )


def _arrivals(
    ring: list[LinkCondition],
    rank: int,
    addresses: list[str],
    neighbours: tuple[socket.socket, socket.socket],
) -> datagrams.Arrivals:
    slowest_mbit = min(path.rate_mbit or MIN_TCP_RATE_MBIT for path in ring)
    if any(path.loss_pct for path in ring) or slowest_mbit < MIN_TCP_RATE_MBIT:
        return datagrams.exchange(ring, rank, addresses, neighbours)
    incoming, outgoing = neighbours
    sender = (rank - 1) % len(ring)
    try:
        rate_mbit = tcp_rate.ring_rate_mbit(
            outgoing,
            incoming,
            sender,
            onward_mbit=ring[rank].rate_mbit,
            seconds=tcp_rate.measuring_seconds(slowest_mbit),
            # TCP's slow start takes several round trips.
            warm_up_s=max(tcp_rate.WARM_UP_S, 24e-3 * max(path.delay_ms for path in ring)),
        )
    except BrokenProbeError:  # of a host that is busy: here its own speed is all that was asked for
        if ring[sender].rate_mbit is not None:
            raise
        rate_mbit = None
    return datagrams.Arrivals(rate_mbit=rate_mbit, num_sent=0, num_lost=0)


def check(condition: NetworkCondition, reports: Sequence[LinkReport | None]) -> None:
    """Refuse a network that is not what was asked for.

    Raises:
        ProbeError: with the numbers, for the first link that is off by more than 5 % in rate,
            5 % and 1 ms in round trip (and what jitter adds), or by more loss than chance.
    """
    for report in reports:
        if report is None or not report.asks:
            continue
        if report.asked_rate_mbit is not None:
            assert report.achieved_rate_mbit is not None
            tcp_rate.check(report.asked_rate_mbit, report.achieved_rate_mbit)
        ends = (report.sender, report.receiver), (report.receiver, report.sender)
        jitter_ms = sum(condition.path(*pair).jitter_ms for pair in ends)
        allowed_ms = TOLERANCE_PCT / 100 * report.asked_rtt_ms + TOLERANCE_MS + jitter_ms
        if abs(report.achieved_rtt_ms - report.asked_rtt_ms) > allowed_ms:
            raise ProbeError(
                f"The round trip between workers {report.sender} and {report.receiver} takes "
                f"{report.achieved_rtt_ms:.2f} ms where {report.asked_rtt_ms:g} were asked for: "
                f"free the host's processors, or choose another delay_ms."
            )
        _check_loss(report)


def loss_interval(num_sent: int, loss_pct: float, sigmas: float) -> tuple[float, float]:
    """How many of the datagrams are lost if chance strays by no more than `sigmas`."""
    mean = num_sent * loss_pct / 100
    spread = sigmas * sqrt(mean * (1 - loss_pct / 100)) + 0.5
    return mean - spread, mean + spread


def _check_loss(report: LinkReport) -> None:
    if report.num_sent is None or report.num_lost is None:
        return
    least, most = loss_interval(report.num_sent, report.asked_loss_pct, LOSS_SIGMAS)
    if not least <= report.num_lost <= most:
        raise ProbeError(
            f"Of {report.num_sent} packets from worker {report.sender} to {report.receiver}, "
            f"{report.num_lost} were lost where loss_pct={report.asked_loss_pct:.3g} makes "
            f"{max(0, least):.0f} to {most:.0f}: free the host's processors, or choose a lower "
            f"rate_mbit or another loss_pct."
        )
