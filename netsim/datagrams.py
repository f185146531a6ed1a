"""Rate and loss of a link by datagrams, counted by the receiver's kernel.

Workers of even rank send first and then those of odd rank: frame by frame, all at once would be
more than two cores carry.
"""

import math
import socket
import time
from dataclasses import dataclass

from netsim import counters
from netsim.link import FRAME_BYTES

_PORT = 29_998
_SECONDS = 0.4
_OVERDRIVE = 1.04
"""Faster than the link by so little that its queue does not fill."""

_DATAGRAM = bytes(1472)
_DEFAULT_RATE_MBIT = 50
_SAMPLE_S = 0.002
_SETTLE_S = 0.03


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What came from the worker before; the rate is that before losses."""

    rate_mbit: float
    num_sent: int
    num_lost: int


def exchange(
    addresses: tuple[str, str],
    neighbours: tuple[socket.socket, socket.socket],
    *,
    rank: int,
    num_workers: int,
    onward_mbit: float | None,
    rate_mbit: float | None,
) -> Arrivals:
    """Send to the next worker, and count what comes from the one before.

    Args:
        addresses: of this worker and of the next.
        neighbours: connections with the worker before and the next.
        rank: this worker.
        num_workers: in the ring.
        onward_mbit: rate of the link to the next worker; None: any.
        rate_mbit: rate of the link from the worker before; None: any.
    """
    incoming, outgoing = neighbours
    sender = (rank - 1) % num_workers
    rates = [rate or _DEFAULT_RATE_MBIT for rate in (onward_mbit, rate_mbit)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((addresses[0], _PORT))
        datagrams.setblocking(False)
        arrived_before = counters.datagrams_arrived()
        sent, samples = 0, []
        for turn in range(2):
            _meet(incoming, outgoing)
            rate = rates[0] if rank % 2 == turn else None
            num_sent, seen = _send(
                datagrams, (addresses[1], _PORT), rate, max(_SECONDS, 10 / min(rates))
            )
            sent += num_sent
            samples.append(seen)
        outgoing.sendall(sent.to_bytes(8, "big"))
        num_sent = int.from_bytes(_receive(incoming, 8), "big")
        num_lost = max(0, num_sent - (_settled(datagrams) - arrived_before))
    received_mbit = _rate_mbit(samples[sender % 2])
    survival = max(1e-9, 1 - num_lost / max(1, num_sent))
    return Arrivals(rate_mbit=received_mbit / survival, num_sent=num_sent, num_lost=num_lost)


def _send(
    datagrams: socket.socket, receiver: tuple[str, int], rate_mbit: float | None, seconds: float
) -> tuple[int, list[tuple[float, int]]]:
    """Keep the pace for a time; how many were sent, and (time in s, bytes received) meanwhile.

    None: send nothing.
    """
    interval_s = FRAME_BYTES * 8e-6 / (rate_mbit * _OVERDRIVE) if rate_mbit else math.inf
    begin_s = now_s = time.monotonic()
    num_sent, samples = 0, []
    while now_s < begin_s + seconds:
        while num_sent < (now_s - begin_s) / interval_s:
            try:
                datagrams.sendto(_DATAGRAM, receiver)
            except BlockingIOError:  # the queue before the link is full
                break
            num_sent += 1
        samples.append((now_s, counters.bytes_received()))
        time.sleep(_SAMPLE_S)
        now_s = time.monotonic()
    return num_sent, samples


def _rate_mbit(samples: list[tuple[float, int]]) -> float:
    """From a quarter of the time on, when the first have long arrived."""
    (begin_s, begin), (end_s, end) = samples[len(samples) // 4], samples[-1]
    return 8e-6 * (end - begin) / (end_s - begin_s)


def _settled(datagrams: socket.socket) -> int:
    """The kernel's count once no more come; it counts what waits in a socket when it is read."""
    before = -1
    while True:
        try:
            while True:
                datagrams.recv(2048)
        except BlockingIOError:
            arrived = counters.datagrams_arrived()
        if arrived == before:
            return arrived
        before = arrived
        time.sleep(_SETTLE_S)


def _meet(incoming: socket.socket, outgoing: socket.socket) -> None:
    """Begin with the neighbours, both of whom listen by now."""
    outgoing.send(b"+")
    incoming.send(b"+")
    _receive(incoming, 1)
    _receive(outgoing, 1)


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        if not (part := connection.recv(num_bytes - len(received))):
            raise ConnectionError("the connection was closed")
        received += part
    return received
