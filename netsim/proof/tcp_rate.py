"""The rate of fast links, measured by the workers' TCP before they train.

Worker r sends to worker r+1 and receives from worker r-1, all at the same time and both in one
loop. The sockets hold enough for the kernels to go on while the host keeps a process waiting.
"""

import select
import socket
import time

from netsim.conditions.link import wire_per_payload
from netsim.conditions.units import bytes_per_s
from netsim.errors import ProbeError
from netsim.links import counters
from netsim.proof.arrivals import ByteSample, steady_rate_mbit

PORT = 29_999
WARM_UP_S = 0.15
"""Left out at the start: the burst of the token bucket, and TCP's slow start."""

_HEADERS_BYTES = 66
"""Ethernet, IP, and TCP with timestamps."""

LIMIT_S = 10
_PATIENCE_ROUND_TRIPS = 8
_UNSENT_S = 0.05
_MIN_UNSENT_BYTES = 128 * 1024
_BLOCK = bytes(256 * 1024)
_LAST = b"."
"""What a sender ends with: a connection that ends otherwise has broken off."""


def measuring_seconds(rate_mbit: float | None) -> float:
    """How long to measure a link of this rate so that single packets of 64 KB do not show."""
    return 0.6 if rate_mbit is None else min(max(0.6, 30 / rate_mbit), 10)


def ring_rate_mbit(
    outgoing: socket.socket,
    incoming: socket.socket,
    sender: int,
    *,
    onward_mbit: float | None,
    seconds: float,
    warm_up_s: float = WARM_UP_S,
) -> float:
    """Rate at which `incoming` brings data, headers included, while `outgoing` sends as much.

    Args:
        outgoing: to the next worker.
        incoming: from the worker before.
        sender: the rank of that worker.
        onward_mbit: the rate of the link to the next worker.
        seconds: to measure; see `measuring_seconds`.
        warm_up_s: left out before that.

    Raises:
        OSError: if a connection breaks off.
        BrokenProbeError: if too little comes from the worker `sender`.
    """
    samples = _send_and_receive(outgoing, incoming, onward_mbit, warm_up_s + seconds)
    warm_s = samples[0].at_s + warm_up_s
    return steady_rate_mbit([sample for sample in samples if sample.at_s >= warm_s], sender)


def limit_s(round_trip_s: float) -> float:
    """How long a worker waits for the next word of another, which may wait for others in turn."""
    return LIMIT_S + _PATIENCE_ROUND_TRIPS * round_trip_s


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


def join_ring(
    rank: int, addresses: list[str], round_trip_s: float = 0.0
) -> tuple[socket.socket, socket.socket]:
    """Connections to the next worker and from the one before, whose timeout is `limit_s` of
    `round_trip_s`, the longest of the ring.

    The server closes here, or it would take the connection that is meant for the next probe.
    """
    sender, receiver = _neighbours(rank, len(addresses))
    with socket.create_server((addresses[rank], PORT)) as server:
        server.settimeout(limit_s(round_trip_s))
        outgoing = _connect(receiver, addresses[receiver], round_trip_s)
        try:
            incoming = _accept(server, sender)
        except ProbeError:
            outgoing.close()
            raise
    for connection in (outgoing, incoming):
        connection.settimeout(limit_s(round_trip_s))
    return outgoing, incoming


def meet(incoming: socket.socket, outgoing: socket.socket) -> None:
    """Wait for both neighbours, and for theirs: none of the four is measuring any more.

    Raises:
        OSError: if a neighbour does not answer.
    """
    for connection in (incoming, outgoing):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(2):
        for connection in (incoming, outgoing):
            connection.sendall(b"+")
        for connection in (incoming, outgoing):
            if not connection.recv(1):
                raise ConnectionError("the connection was closed")


def _neighbours(rank: int, num_workers: int) -> tuple[int, int]:
    """Whom a worker receives from, and whom it sends to."""
    return (rank - 1) % num_workers, (rank + 1) % num_workers


def _connect(peer: int, address: str, round_trip_s: float) -> socket.socket:
    """Connect to a neighbour, who may not listen yet."""
    deadline = time.monotonic() + limit_s(round_trip_s)
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=1 + 3 * round_trip_s)
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
    outgoing: socket.socket, incoming: socket.socket, onward_mbit: float | None, seconds: float
) -> list[ByteSample]:
    """Send for a time and receive until the end; a sample at each arrival."""
    patience_s = outgoing.gettimeout()
    outgoing.setblocking(False)
    incoming.setblocking(False)
    # CUBIC leaves its slow start early when acknowledgements wait behind data, as they do here.
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    # Else megabytes wait in this socket when the time is over, and take as long to drain.
    unsent_bytes = max(_MIN_UNSENT_BYTES, round(_UNSENT_S * bytes_per_s(onward_mbit or 0)))
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
    buffer = bytearray(1024 * 1024)
    wire_share = wire_per_payload(counters.mtu())  # the rate is of whole frames
    samples, last = [_sample(wire_share)], b""
    senders, receivers = [outgoing], [incoming]
    end = time.monotonic() + seconds
    while senders or receivers:
        readable, writable, _ = select.select(receivers, senders, [], patience_s)
        if not readable and not writable:
            raise TimeoutError(f"silent for {patience_s:g} s")
        if readable:
            num_bytes = incoming.recv_into(buffer)
            if num_bytes:
                last = buffer[num_bytes - 1 : num_bytes]
            elif last == _LAST:
                receivers = []
            else:
                raise ConnectionError("the connection was closed")
            samples.append(_sample(wire_share))
        if writable and time.monotonic() < end:
            outgoing.send(_BLOCK)
        elif writable:
            outgoing.send(_LAST)
            outgoing.shutdown(socket.SHUT_WR)
            senders = []
    outgoing.settimeout(patience_s)
    _await_delivery(outgoing, incoming)
    return samples


def _sample(wire_share: float) -> ByteSample:
    """The bytes on a wire of TCP's data, however many frames the kernel counts as one packet.

    Bare acknowledgements count as nothing.
    """
    at_s = time.monotonic()
    num_bytes, num_packets = counters.received()
    return ByteSample(at_s, (num_bytes - _HEADERS_BYTES * num_packets) * wire_share)


def _await_delivery(outgoing: socket.socket, incoming: socket.socket) -> None:
    """Wait until the next worker has received everything, so that the link is empty again."""
    incoming.shutdown(socket.SHUT_WR)
    outgoing.recv(1)
