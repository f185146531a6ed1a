"""A network measured link after link, by as few system calls as possible.

The proof before a run measures all links at once and takes a second. This one takes its time, so
that a slow host with one processor, such as a guest, can follow: worker 0 sends to worker 1 while
the others sleep, then worker 1 to worker 2, and so on around the ring. The proof's functions
measure round trips and count arrived datagrams. Two loops are written anew, because the proof's
stream asks the kernel for its counters at each arrival, and the proof's datagrams come in bursts
that fill a link's queue.
"""

import socket
import statistics
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from typing import Any

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition, frame_bytes, wire_per_payload
from netsim.conditions.units import bytes_per_s, mbit_per_s
from netsim.errors import ProbeError
from netsim.links import counters
from netsim.links.namespaces import Hub
from netsim.proof import round_trip, tcp_rate
from netsim.proof.datagrams import arrived, full_datagram
from netsim.proof.proof import LinkReport
from netsim.proof.temporary_network import run_workers
from netsim.validation import ring

NUM_DATAGRAMS = 2500
"""Of each link that loses some."""

DATAGRAM_RATE_MBIT = 40
"""Well below a lossy preset's rate, so that nothing is lost but by chance."""

_LIMIT_S = 60
_SILENCE_S = 0.2
_UNSENT_BYTES = 128 * 1024
_PORT = 29_997
_BLOCK = bytes(128 * 1024)


def measure_links(condition: NetworkCondition, num_workers: int) -> list[LinkReport]:
    """Make the network, measure the link from each worker to the next, and take it down again.

    The round trip is the least of several; with jitter it is the median. Datagrams count losses.
    The rate is then measured on the same network with `loss_pct` 0, since TCP slows down for
    losses.

    Args:
        condition: of the network; its links at time 0 count.
        num_workers: two or more.

    Raises:
        NamespaceError, ProbeError: if the network cannot be made or measured.
    """

    def work(hub: Hub, rank: int) -> dict[str, Any]:
        addresses = [hub.address(r) for r in range(num_workers)]
        try:
            report = _measure(condition, rank, addresses)
        except OSError as error:
            raise ProbeError(
                f"Worker {rank} could not measure its links ({error}): did another one die?"
            ) from error
        _linger(condition, num_workers)
        return asdict(report)

    reports = [LinkReport(**r) for r in run_workers(condition, num_workers, work).values]
    if condition.loss_pct:
        lossless = measure_links(replace(condition, loss_pct=0), num_workers)
        rates = [report.achieved_rate_mbit for report in lossless]
        reports = [
            replace(report, achieved_rate_mbit=rate)
            for report, rate in zip(reports, rates, strict=True)
        ]
    return reports


@dataclass(frozen=True, kw_only=True)
class AllReduces:
    """How long each of several took, and for how much of that time the switch kept one processor
    busy; None where no switch is.
    """

    seconds: list[float]
    switch_load: float | None


def all_reduces(
    condition: NetworkCondition, num_workers: int, num_bytes: int, num_times: int
) -> AllReduces:
    """Time several all-reduces one after the other; see `ring`.

    Raises:
        NamespaceError: if the network cannot be made, or a worker fails.
    """

    def work(hub: Hub, rank: int) -> dict[str, Any]:
        addresses = [hub.address(r) for r in range(num_workers)]
        switch = hub.switch if rank == 0 else None
        cpu_s = -switch.counters().cpu_s if switch else 0.0
        seconds = ring.all_reduce_seconds(rank, addresses, num_bytes, num_times=num_times)
        cpu_s += switch.counters().cpu_s if switch else 0.0
        _linger(condition, num_workers)
        return {"seconds": seconds, "switch_load": cpu_s / sum(seconds) if switch else None}

    return AllReduces(**run_workers(condition, num_workers, work).values[0])


def _measure(condition: NetworkCondition, rank: int, addresses: list[str]) -> LinkReport:
    """The link that leads to this worker. Who has received is the next to send."""
    num_workers = len(addresses)
    sender, receiver = (rank - 1) % num_workers, (rank + 1) % num_workers
    outgoing, incoming = tcp_rate.join_ring(rank, addresses)
    with (
        outgoing,
        incoming,
        round_trip.listen(addresses[rank]),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        for connection in (outgoing, incoming):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_LIMIT_S)
        datagrams.bind((addresses[rank], _PORT))
        datagrams.setblocking(False)
        end = _End(condition.path(rank, receiver), outgoing, datagrams)
        if rank == 0:
            end.send((addresses[receiver], _PORT))
        there, back = condition.path(sender, rank), condition.path(rank, sender)
        asked_rtt_ms = there.delay_ms + back.delay_ms
        measured = _End(there, incoming, datagrams).receive(addresses[sender], asked_rtt_ms)
        if rank != 0:
            end.send((addresses[receiver], _PORT))
    return LinkReport(
        sender=sender,
        receiver=rank,
        asked_rate_mbit=there.rate_mbit,
        asked_rtt_ms=asked_rtt_ms,
        asked_loss_pct=there.loss_pct,
        **measured,
    )


@dataclass(frozen=True)
class _End:
    """One end of a link, and the connection over it."""

    path: LinkCondition
    connection: socket.socket
    datagrams: socket.socket

    def send(self, receiver: tuple[str, int]) -> None:
        """Be measured; returns when the receiver has everything."""
        self.connection.sendall(b"+")  # the links are this worker's and the receiver's now
        self.connection.recv(1)
        if self.path.loss_pct:
            _send_datagrams(self.datagrams, receiver)
        else:
            _send_stream(self.connection, _warm_up_s(self.path) + _seconds(self.path))
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.recv(1)

    def receive(self, sender: str, asked_rtt_ms: float) -> dict[str, Any]:
        """Measure; returns the achieved values of a `LinkReport`."""
        self.connection.recv(1)
        typical = statistics.median if self.path.jitter_ms else min
        rtt_ms = typical(round_trip.round_trips_ms(sender, asked_rtt_ms))
        values: dict[str, Any] = {"achieved_rtt_ms": rtt_ms}
        arrived_before = counters.datagrams_arrived()
        self.connection.sendall(b"+")
        rate_mbit = _rate_mbit(self.connection, _warm_up_s(self.path))
        if self.path.loss_pct:
            num_arrived = arrived(self.datagrams, _SILENCE_S) - arrived_before
            values |= {"num_sent": NUM_DATAGRAMS, "num_lost": NUM_DATAGRAMS - num_arrived}
        self.connection.shutdown(socket.SHUT_WR)
        return values | {"achieved_rate_mbit": rate_mbit}


def _send_datagrams(datagrams: socket.socket, receiver: tuple[str, int]) -> None:
    interval_s = frame_bytes() / bytes_per_s(DATAGRAM_RATE_MBIT)
    datagram = full_datagram()
    begin_s = time.monotonic()
    for num_sent in range(NUM_DATAGRAMS):
        time.sleep(max(0.0, begin_s + num_sent * interval_s - time.monotonic()))
        datagrams.sendto(datagram, receiver)


def _send_stream(connection: socket.socket, seconds: float) -> None:
    # Else megabytes wait in this socket when the time is over, and take as long to drain.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        connection.sendall(_BLOCK)


def _rate_mbit(connection: socket.socket, warm_up_s: float) -> float:
    """What comes until the sender ends, headers included; 0 if it is nothing."""
    buffer = bytearray(1024 * 1024)
    arrivals, num_bytes = [], 0
    while received := connection.recv_into(buffer):
        num_bytes += received
        arrivals.append((time.monotonic(), num_bytes))
    if not arrivals:
        return 0.0
    begin = bisect_left(arrivals, (arrivals[0][0] + warm_up_s, 0))
    (begin_s, before), (end_s, after) = arrivals[min(begin, len(arrivals) - 1)], arrivals[-1]
    goodput = (after - before) / max(end_s - begin_s, 1e-9)
    return wire_per_payload() * mbit_per_s(goodput)


def _seconds(path: LinkCondition) -> float:
    return tcp_rate.measuring_seconds(path.rate_mbit)


def _warm_up_s(path: LinkCondition) -> float:
    """TCP's slow start takes several round trips."""
    return max(tcp_rate.WARM_UP_S, 24e-3 * path.delay_ms)


def _linger(condition: NetworkCondition, num_workers: int) -> None:
    """Wait before exit: a process that exits removes its link, and the packets that netem still
    holds.
    """
    longest_ms = max(condition.path(r, (r + 1) % num_workers).delay_ms for r in range(num_workers))
    time.sleep(_SILENCE_S + longest_ms / 1000)
