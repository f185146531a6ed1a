"""Rate and loss of a link by datagrams, counted by the receiver's kernel.

Workers of even rank send first and then those of odd rank: frame by frame, all at once would be
more than two cores carry.
"""

import select
import socket
import time
from bisect import bisect_left
from dataclasses import dataclass

from netsim import counters, probe
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
    """What came from the worker before, and what did not."""

    rate_mbit: float
    num_sent: int
    num_lost: int


def measuring_seconds(slowest_mbit: float, delay_ms: float) -> float:
    """How long each half of the workers sends, so that neither single frames nor delay show."""
    return max(_SECONDS, 10 / slowest_mbit, 8e-3 * delay_ms)


def exchange(
    addresses: tuple[str, str],
    neighbours: tuple[socket.socket, socket.socket],
    *,
    rank: int,
    onward: LinkCondition,
    seconds: float,
) -> Arrivals:
    """Send to the next worker, and count what comes from the one before.

    Args:
        addresses: of this worker and of the next.
        neighbours: connections with the worker before and the next.
        rank: this worker.
        onward: the path to the next worker.
        seconds: of `measuring_seconds`, the same for all workers.
    """
    incoming, outgoing = neighbours
    overdrive = 1 + min(_OVERDRIVE, onward.queue_ms / 2000 / seconds)
    # What is lost takes no time on the link, with netem as with the switch.
    survival = max(0.01, 1 - onward.loss_pct / 100)
    pace_mbit = overdrive / survival * (onward.rate_mbit or DEFAULT_RATE_MBIT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((addresses[0], _PORT))
        datagrams.setblocking(False)
        arrived_before = counters.datagrams_arrived()
        sent, samples = 0, [_sample()]
        for turn in range(2):
            _meet(incoming, outgoing, samples)
            if rank % 2 == turn:
                sent = _send(datagrams, (addresses[1], _PORT), pace_mbit, seconds, samples)
            else:
                _send(datagrams, (addresses[1], _PORT), 0, seconds, samples)
        outgoing.sendall(sent.to_bytes(8, "big"))
        num_sent = int.from_bytes(_receive(incoming, 8, samples), "big")
        num_lost = max(0, num_sent - (_settled(datagrams) - arrived_before))
    rate_mbit = _rate_mbit([*samples, _sample()])
    return Arrivals(rate_mbit=rate_mbit, num_sent=num_sent, num_lost=num_lost)


def _sample() -> tuple[float, int]:
    return time.monotonic(), counters.bytes_received()


def _send(
    datagrams: socket.socket,
    receiver: tuple[str, int],
    pace_mbit: float,
    seconds: float,
    samples: list[tuple[float, int]],
) -> int:
    """Keep the pace for a time and take samples; how many were sent."""
    per_second = pace_mbit / (FRAME_BYTES * 8e-6)
    begin_s = now_s = time.monotonic()
    num_sent = 0
    while now_s < begin_s + seconds:
        while num_sent < (now_s - begin_s) * per_second:
            try:
                datagrams.sendto(_DATAGRAM, receiver)
            except BlockingIOError:  # the queue before the link is full
                break
            num_sent += 1
        samples.append(_sample())
        time.sleep(_SAMPLE_S)
        now_s = time.monotonic()
    return num_sent


def _rate_mbit(samples: list[tuple[float, int]]) -> float:
    """From the first quarter of what came to nearly the last, whenever that was."""
    least, most = samples[0][1], samples[-1][1]
    times_s, totals = zip(*samples, strict=True)
    begin = bisect_left(totals, least + 0.25 * (most - least))
    end = bisect_left(totals, least + 0.97 * (most - least))
    if end == begin:
        return 0.0
    return 8e-6 * (totals[end] - totals[begin]) / (times_s[end] - times_s[begin])


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


def _meet(
    incoming: socket.socket, outgoing: socket.socket, samples: list[tuple[float, int]]
) -> None:
    """Begin with the neighbours, both of whom listen by now."""
    outgoing.send(b"+")
    incoming.send(b"+")
    _receive(incoming, 1, samples)
    _receive(outgoing, 1, samples)


def _receive(connection: socket.socket, num_bytes: int, samples: list[tuple[float, int]]) -> bytes:
    """Wait for so many bytes. Samples go on: a lost word delays one worker and not the next."""
    received, deadline = b"", time.monotonic() + probe.LIMIT_S
    while len(received) < num_bytes:
        if select.select([connection], [], [], _SAMPLE_S)[0]:
            if not (part := connection.recv(num_bytes - len(received))):
                raise ConnectionError("the connection was closed")
            received += part
        elif time.monotonic() > deadline:
            raise TimeoutError(f"silent for {probe.LIMIT_S} s")
        samples.append(_sample())
    return received
