"""What one TCP connection carries over a link, measured, and what theory says.

A link of 100 Mbit/s is not one of 100 Mbit/s to a connection that loses packets, or whose window is
full before the first acknowledgement comes. Worker 0 sends to worker 1 by one ordinary connection.
"""

import socket
import time
from dataclasses import dataclass
from math import inf

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import segment_bytes, wire_per_payload
from netsim.conditions.units import bytes_per_s, mbit_per_s
from netsim.links.tcp import TcpSettings
from netsim.timeline.tcp.throughput import SEGMENT_BYTES, loss_limited_rate, socket_window_bytes

PORT = 29_996
PACKET_BYTES = 2_304
"""That a send buffer counts for a packet of one segment (Linux, SKB_TRUESIZE)."""

LIMIT_S = 10
SENDER, RECEIVER = 0, 1
_CLEAN_S, _LOSSY_S = 2.0, 12.0
"""To measure: losses come at random, and one halves the rate for many round trips."""

_WARM_UP_ROUND_TRIPS = 60
_PATIENCE_ROUND_TRIPS = 8
_BLOCK = bytes(64 * 1024)


@dataclass(frozen=True, kw_only=True)
class ConnectionReport:
    """Application's data, 10^6 bits per second; None by theory where nothing limits it. Measured
    for `seconds`.
    """

    measured_mbit: float
    theory_mbit: float | None
    seconds: float


def measure(condition: NetworkCondition, rank: int, addresses: list[str]) -> float | None:
    """Send or receive for some seconds; returns 10^6 bits per second of data on the receiver, and
    None on all other workers.

    Raises:
        OSError: a connection breaks off.
    """
    if rank == SENDER:
        duration_s = _warm_up_s(condition) + seconds(condition)
        _send(addresses[RECEIVER], duration_s, _limit_s(condition))
    if rank == RECEIVER:
        return _receive(addresses[RECEIVER], _warm_up_s(condition), _limit_s(condition))
    return None


def seconds(condition: NetworkCondition) -> float:
    """How long to measure, after the slow start."""
    return _LOSSY_S if condition.path(SENDER, RECEIVER).loss_pct else _CLEAN_S


def report(condition: NetworkCondition, measured_mbit: float, tcp: TcpSettings) -> ConnectionReport:
    """Put theory beside what was measured; `tcp` is of the sender."""
    return ConnectionReport(
        measured_mbit=measured_mbit,
        theory_mbit=theory_mbit(condition, tcp),
        seconds=seconds(condition),
    )


def theory_mbit(condition: NetworkCondition, tcp: TcpSettings) -> float | None:
    """10^6 bits per second of data in the steady state: the least of what the link's rate leaves
    beside headers, a full window a round trip, and what losses allow (`loss_limited_rate`).

    The window is `window_bytes`.
    """
    there, rtt_s = condition.path(SENDER, RECEIVER), _round_trip_s(condition)
    rate = inf if there.rate_mbit is None else bytes_per_s(there.rate_mbit)
    rate, segment = rate / wire_per_payload(condition.mtu), segment_bytes(condition.mtu)
    loss = there.loss_pct / 100
    limited = float(loss_limited_rate(tcp.congestion_control, rate, rtt_s, loss, segment=segment))
    carried = min(limited, window_bytes(tcp) / rtt_s if rtt_s else inf)
    return None if carried == inf else mbit_per_s(carried)


def window_bytes(tcp: TcpSettings) -> float:
    """What is in flight on a connection at most, where nothing but buffers limits it; a send buffer
    holds less where packets have one segment.

    Measured with frames of 1,514 bytes over 50 ms and 100 kB to 4 MB: 0.59 to 0.65 of the send
    buffer, 0.38 where packets have one segment; 0.58 to 0.63 of the receive buffer.
    """
    share = SEGMENT_BYTES / PACKET_BYTES if tcp.max_segments == 1 else 1.0
    return socket_window_bytes(share * tcp.wmem_max_bytes, tcp.rmem_max_bytes)


def _warm_up_s(condition: NetworkCondition) -> float:
    return 0.3 + _WARM_UP_ROUND_TRIPS * _round_trip_s(condition)


def _limit_s(condition: NetworkCondition) -> float:
    """How long one waits for the other, who may have to send again what was lost."""
    return LIMIT_S + _PATIENCE_ROUND_TRIPS * _round_trip_s(condition)


def _round_trip_s(condition: NetworkCondition) -> float:
    there, back = condition.path(SENDER, RECEIVER), condition.path(RECEIVER, SENDER)
    return (there.delay_ms + back.delay_ms) / 1e3


def _send(address: str, duration_s: float, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=limit_s)
            break
        except ConnectionRefusedError:  # the receiver does not listen yet
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
    with connection:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            connection.sendall(_BLOCK)


def _receive(address: str, warm_up_s: float, limit_s: float) -> float:
    buffer = bytearray(1 << 20)
    with socket.create_server((address, PORT)) as server:
        server.settimeout(limit_s)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(limit_s)
        begin_s, num_bytes, counted_from_s = time.monotonic(), 0, inf
        now_s = begin_s
        while arrived := connection.recv_into(buffer):
            now_s = time.monotonic()
            if counted_from_s < inf:
                num_bytes += arrived
            elif now_s - begin_s >= warm_up_s:
                counted_from_s = now_s
    return mbit_per_s(num_bytes / max(now_s - counted_from_s, 1e-3))
