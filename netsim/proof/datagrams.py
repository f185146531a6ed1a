"""Rate and loss of a link by datagrams, counted by the receiver's kernel.

Workers send in turns: frame by frame, all at once would be more than two cores carry. They fill the
link's queue at the start, so that it never runs empty while the host keeps a sender waiting.
"""

import math
import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from netsim.conditions.link import MTU, LinkCondition, frame_bytes
from netsim.conditions.units import bytes_per_s
from netsim.links import counters
from netsim.proof import tcp_rate
from netsim.proof.arrivals import ByteSample, sample, steady_rate_mbit

_PORT = 29_998
_SECONDS = 0.3
_MAX_SECONDS = 2.2
_MAX_TURNS = 4
_TURN_MBIT = 100
_LEAD_S = 0.08
_OVERDRIVE = 0.04
"""Faster than the link by so little that its queue does not fill."""

_BUFFER_BYTES = 4_000_000
_NUM_SOCKETS = 4
"""The host may limit each one's buffer to 200 frames."""

_HEADERS_BYTES = 42
"""Ethernet, IP and UDP."""

DEFAULT_RATE_MBIT = 50
_SAMPLE_S = 0.002
_SETTLE_S = 0.03
_STEADY = (0.25, 0.97)
"""From this to that share of what came: without the burst of a token bucket."""


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What came from the worker before, and what did not."""

    rate_mbit: float | None
    num_sent: int
    num_lost: int


def full_datagram(mtu: int = MTU) -> bytes:
    """One that fills a frame, without its headers."""
    return bytes(frame_bytes(mtu) - _HEADERS_BYTES)


def measuring_seconds(ring: Sequence[LinkCondition]) -> float:
    """How long each worker sends, so that single frames do not show on any of the paths."""
    slowest_mbit = min(path.rate_mbit or DEFAULT_RATE_MBIT for path in ring)
    return min(max(_SECONDS, 5 / slowest_mbit), _MAX_SECONDS)


def num_turns(ring: Sequence[LinkCondition]) -> int:
    """How many groups of workers send one after the other: all at once if the links are slow."""
    total_mbit = sum(path.rate_mbit or DEFAULT_RATE_MBIT for path in ring)
    return min(_MAX_TURNS, len(ring), math.ceil(total_mbit / _TURN_MBIT))


def exchange(
    ring: Sequence[LinkCondition],
    rank: int,
    addresses: Sequence[str],
    neighbours: tuple[socket.socket, socket.socket],
) -> Arrivals:
    """Send to the next worker, and count what comes from the one before.

    Args:
        ring: the paths from each worker to the next.
        rank: this worker.
        addresses: of all workers.
        neighbours: connections with the worker before and the next.

    Raises:
        OSError: if a neighbour stops to answer.
        BrokenProbeError: if too little came to measure a rate.
    """
    incoming, outgoing = neighbours
    receiver = (addresses[(rank + 1) % len(ring)], _PORT)
    seconds, turns = measuring_seconds(ring), num_turns(ring)
    datagram = full_datagram(counters.mtu())
    with ExitStack() as stack:
        datagrams, *others = [stack.enter_context(_socket()) for _ in range(_NUM_SOCKETS)]
        datagrams.bind((addresses[rank], _PORT))
        arrived_before = counters.datagrams_arrived()
        sent, samples = 0, [sample()]
        for turn in range(turns):
            _meet(incoming, outgoing, samples)
            if rank % turns == turn:
                sent = _send([datagrams, *others], receiver, datagram, ring[rank], seconds, samples)
            else:
                _sample_for(seconds, samples)
        outgoing.sendall(sent.to_bytes(8, "big"))
        num_sent = int.from_bytes(_receive(incoming, 8, samples), "big")
        num_lost = max(0, num_sent - (arrived(datagrams, _SETTLE_S) - arrived_before))
    samples.append(sample())
    rate_mbit = steady_rate_mbit(steady_part(samples), (rank - 1) % len(ring))
    return Arrivals(rate_mbit=rate_mbit, num_sent=num_sent, num_lost=num_lost)


def steady_part(samples: Sequence[ByteSample]) -> list[ByteSample]:
    """The samples from the first quarter of what came to nearly the last, whenever that was."""
    first, total = samples[0].num_bytes, samples[-1].num_bytes - samples[0].num_bytes
    least, most = (first + share * total for share in _STEADY)
    return [sample for sample in samples if least <= sample.num_bytes <= most]


def _socket() -> socket.socket:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return datagrams


def _send(
    sockets: list[socket.socket],
    receiver: tuple[str, int],
    datagram: bytes,
    path: LinkCondition,
    seconds: float,
    samples: list[ByteSample],
) -> int:
    """Send a little faster than the path for a time; how many."""
    # What is lost takes no time on the link, with netem as with the switch.
    survival = max(0.01, 1 - path.loss_pct / 100)
    frame = len(datagram) + _HEADERS_BYTES
    frames_per_s = bytes_per_s(path.rate_mbit or DEFAULT_RATE_MBIT) / survival / frame
    lead_s = min(_LEAD_S, path.queue_ms / 4000)
    overdrive = 1 + min(_OVERDRIVE, path.queue_ms / 4000 / seconds)
    begin_s = now_s = time.monotonic()
    num_sent = 0
    while now_s < begin_s + seconds:
        while num_sent < (lead_s + overdrive * (now_s - begin_s)) * frames_per_s:
            if not any(_sends(datagrams, receiver, datagram) for datagrams in sockets):
                break  # the queue before the link is full
            num_sent += 1
        samples.append(sample())
        time.sleep(_SAMPLE_S)
        now_s = time.monotonic()
    return num_sent


def _sends(datagrams: socket.socket, receiver: tuple[str, int], datagram: bytes) -> bool:
    with suppress(BlockingIOError):
        return datagrams.sendto(datagram, receiver) > 0
    return False


def _sample_for(seconds: float, samples: list[ByteSample]) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        samples.append(sample())
        time.sleep(_SAMPLE_S)


def arrived(datagrams: socket.socket, silence_s: float) -> int:
    """The kernel's count of datagrams, once none has come to this non-blocking socket for a time.

    The kernel counts what waits in a socket when it is read.
    """
    before = -1
    while True:
        try:
            while True:
                datagrams.recv(2048)
        except BlockingIOError:
            count = counters.datagrams_arrived()
        if count == before:
            return count
        before = count
        time.sleep(silence_s)


def _meet(incoming: socket.socket, outgoing: socket.socket, samples: list[ByteSample]) -> None:
    """Begin together with both neighbours, which listen by now."""
    outgoing.send(b"+")
    incoming.send(b"+")
    _receive(incoming, 1, samples)
    _receive(outgoing, 1, samples)


def _receive(connection: socket.socket, num_bytes: int, samples: list[ByteSample]) -> bytes:
    """Wait for so many bytes, as long as the connection's timeout says. Looks go on: a lost word
    delays one worker and not the next.
    """
    patience_s = connection.gettimeout() or tcp_rate.LIMIT_S
    received, deadline = b"", time.monotonic() + patience_s
    while len(received) < num_bytes:
        if select.select([connection], [], [], _SAMPLE_S)[0]:
            if not (part := connection.recv(num_bytes - len(received))):
                raise ConnectionError("the connection was closed")
            received += part
        elif time.monotonic() > deadline:
            raise TimeoutError(f"silent for {patience_s:g} s")
        samples.append(sample())
    return received
