"""What the network really does, measured by the workers before they train.

Worker r sends TCP to worker r+1 and receives from worker r-1, all at the same time and both in
one loop. How fast the received bytes came is the rate of the link. It is taken in several slots
of time, of which the median counts: a process that the host keeps waiting makes one slot too slow
and, by catching up, the next too fast.
"""

import select
import socket
import statistics
import time
from bisect import bisect_left
from itertools import pairwise

from netsim.errors import ProbeError

PORT = 29_999
NUM_SLOTS = 3
WARM_UP_S = 0.15
"""Left out at the start: the burst of the token bucket, and TCP's slow start."""

WIRE_PER_GOODPUT = 1514 / 1448
"""Ethernet, IP and TCP headers (with timestamps), which the shaped rate includes."""

LIMIT_S = 10
_UNSENT_BYTES = 128 * 1024
_BLOCK = bytes(256 * 1024)


def measuring_seconds(rate_mbit: float | None) -> float:
    """How long to measure a link of this rate so that single packets of 64 KB do not show."""
    return 0.6 if rate_mbit is None else min(max(0.6, 30 / rate_mbit), 10)


def achieved_rate_mbit(rank: int, addresses: list[str], *, seconds: float = 0.6) -> float | None:
    """Rate of this worker's link, headers included, as it received from the worker before it.

    Every worker has to call it at about the same time. No failure of another worker holds this
    one for longer than some twenty seconds.

    Args:
        rank: this worker.
        addresses: of all the workers, by rank.
        seconds: to measure, after `WARM_UP_S`; see `measuring_seconds`.

    Returns:
        10^6 bits per second; None for a single worker, who has no link to measure.

    Raises:
        ProbeError: if a neighbour does not answer, or stops; names it.
    """
    if len(addresses) == 1:
        return None
    sender, receiver = _neighbours(rank, len(addresses))
    outgoing, incoming = join_ring(rank, addresses)
    with outgoing, incoming:
        try:
            return ring_rate_mbit(outgoing, incoming, sender, seconds=seconds)
        except OSError as error:
            raise ProbeError(
                f"The probe from worker {sender} or to worker {receiver} broke off ({error}): "
                f"did one of them die?"
            ) from error


def ring_rate_mbit(
    outgoing: socket.socket,
    incoming: socket.socket,
    sender: int,
    *,
    seconds: float,
    warm_up_s: float = WARM_UP_S,
) -> float:
    """Rate at which `incoming` brings data, headers included, while `outgoing` sends as much.

    Raises:
        OSError: if a connection breaks off.
        ProbeError: if too little comes from the worker `sender`.
    """
    arrivals = _send_and_receive(outgoing, incoming, warm_up_s + seconds)
    return WIRE_PER_GOODPUT * _median_rate_mbit(arrivals, seconds, sender, warm_up_s)


def deviation_pct(asked_mbit: float, achieved_mbit: float) -> float:
    """How far the achieved rate is from the one asked for, in per cent; below it is negative."""
    return 100 * (achieved_mbit / asked_mbit - 1)


def check(asked_mbit: float, achieved_mbit: float, *, tolerance_pct: float = 5) -> None:
    """Refuse a network that is not what was asked for.

    Raises:
        ProbeError: with both rates, if they differ by more than `tolerance_pct`.
    """
    deviation = deviation_pct(asked_mbit, achieved_mbit)
    if abs(deviation) > tolerance_pct:
        raise ProbeError(
            f"The network achieves {achieved_mbit:.1f} Mbit/s where {asked_mbit:g} were asked for "
            f"({deviation:+.1f} %): free the host's processors, or choose another rate_mbit."
        )


def join_ring(rank: int, addresses: list[str]) -> tuple[socket.socket, socket.socket]:
    """Connections to the next worker and from the one before.

    The server closes here, or it would take the connection that is meant for the next probe.
    """
    sender, receiver = _neighbours(rank, len(addresses))
    with socket.create_server((addresses[rank], PORT)) as server:
        server.settimeout(LIMIT_S)
        outgoing = _connect(receiver, addresses[receiver])
        try:
            return outgoing, _accept(server, sender)
        except ProbeError:
            outgoing.close()
            raise


def _neighbours(rank: int, num_workers: int) -> tuple[int, int]:
    """Whom a worker receives from, and whom it sends to."""
    return (rank - 1) % num_workers, (rank + 1) % num_workers


def _connect(peer: int, address: str) -> socket.socket:
    """Connect to a neighbour, who may not listen yet."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=1)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ProbeError(
                    f"Worker {peer} at {address} does not answer the probe ({error}): did it die?"
                ) from error
            time.sleep(0.01)


def _accept(server: socket.socket, peer: int) -> socket.socket:
    try:
        return server.accept()[0]
    except TimeoutError as error:
        raise ProbeError(f"Worker {peer} did not connect to the probe: did it die?") from error


def _send_and_receive(
    outgoing: socket.socket, incoming: socket.socket, seconds: float
) -> list[tuple[float, int]]:
    """Send for a time and receive until the end; (time in s, bytes so far) of each arrival."""
    outgoing.setblocking(False)
    incoming.setblocking(False)
    # CUBIC leaves its slow start early when acknowledgements wait behind data, as they do here.
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    # Else megabytes wait in this socket when the time is over, and take as long to drain.
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    buffer = bytearray(1024 * 1024)
    arrivals, num_bytes = [], 0
    senders, receivers = [outgoing], [incoming]
    end = time.monotonic() + seconds
    while senders or receivers:
        readable, writable, _ = select.select(receivers, senders, [], LIMIT_S)
        if not readable and not writable:
            raise TimeoutError(f"silent for {LIMIT_S} s")
        if readable:
            received = incoming.recv_into(buffer)
            if received:
                num_bytes += received
                arrivals.append((time.monotonic(), num_bytes))
            else:
                receivers = []
        if writable and time.monotonic() < end:
            outgoing.send(_BLOCK)
        elif writable:
            outgoing.shutdown(socket.SHUT_WR)
            senders = []
    _await_delivery(outgoing, incoming)
    return arrivals


def _await_delivery(outgoing: socket.socket, incoming: socket.socket) -> None:
    """Wait until the next worker has received everything, so that the link is empty again."""
    incoming.shutdown(socket.SHUT_WR)
    outgoing.settimeout(LIMIT_S)
    outgoing.recv(1)


def _median_rate_mbit(
    arrivals: list[tuple[float, int]], seconds: float, peer: int, warm_up_s: float = WARM_UP_S
) -> float:
    """Median over the slots of the goodput, each taken from one arrival to another."""
    times = [arrived for arrived, _ in arrivals]
    begin = times[0] + warm_up_s if times else 0
    bounds = [begin + slot * seconds / NUM_SLOTS for slot in range(NUM_SLOTS + 1)]
    marks = [min(bisect_left(times, bound), len(times) - 1) for bound in bounds]
    if len(set(marks)) <= NUM_SLOTS:
        raise ProbeError(
            f"What worker {peer} sent in {seconds:g} s is too little to measure a rate: measure "
            f"for longer, or choose a higher rate_mbit."
        )
    slots = [(arrivals[i], arrivals[j]) for i, j in pairwise(marks)]
    return statistics.median(8e-6 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in slots)
