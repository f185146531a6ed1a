"""Rate and loss of a link by datagrams, counted by the receiver's kernel.

Workers of even rank send first and then those of odd rank: frame by frame, all at once would be
more than two cores carry.
"""

import math
import socket
import time
from dataclasses import dataclass

from netsim import counters
from netsim.link import FRAME_BYTES, LinkCondition

_PORT = 29_998
_SECONDS = 0.4
_OVERDRIVE = 0.04
"""Faster than the link by so little that its queue does not fill."""

_DATAGRAM = bytes(1472)
DEFAULT_RATE_MBIT = 50
_SAMPLE_S = 0.002
_SETTLE_S = 0.03


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What came from the worker before; the rate is that before losses."""

    rate_mbit: float
    num_sent: int
    num_lost: int


def measuring_seconds(slowest_mbit: float, delay_ms: float) -> float:
    """How long each half of the workers sends, so that neither single frames nor delay show."""
    return max(_SECONDS, 10 / slowest_mbit, 8e-3 * delay_ms)


def exchange(
    addresses: tuple[str, str],
    neighbours: tuple[socket.socket, socket.socket],
    ranks: tuple[int, int],
    *,
    onward: LinkCondition,
    seconds: float,
) -> Arrivals:
    """Send to the next worker, and count what comes from the one before.

    Args:
        addresses: of this worker and of the next.
        neighbours: connections with the worker before and the next.
        ranks: of this worker and of the one before.
        onward: the path to the next worker.
        seconds: of `measuring_seconds`, the same for all workers.
    """
    incoming, outgoing = neighbours
    rank, sender = ranks
    overdrive = 1 + min(_OVERDRIVE, onward.queue_ms / 2000 / seconds)
    pace_mbit = overdrive * (onward.rate_mbit or DEFAULT_RATE_MBIT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((addresses[0], _PORT))
        datagrams.setblocking(False)
        arrived_before = counters.datagrams_arrived()
        sent, samples = 0, []
        for turn in range(2):
            _meet(incoming, outgoing)
            pace = pace_mbit if rank % 2 == turn else None
            num_sent, seen = _send(datagrams, (addresses[1], _PORT), pace, seconds)
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
    interval_s = FRAME_BYTES * 8e-6 / rate_mbit if rate_mbit else math.inf
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
