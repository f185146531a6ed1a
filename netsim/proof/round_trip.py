"""The round trip to a worker, timed by the kernel: a busy host delays no kernel as it does Python.

Each sample is a connection's opening, which the peer's kernel answers alone; see tcp(7), TCP_INFO.
"""

import errno
import socket
import struct
import time

from netsim.proof import tcp_rate

NUM_PINGS = 11
PORT = 29_997
_INTERVAL_S = 0.003
"""Between two openings, whose packets then do not queue behind one another."""

_PATIENCE_S = 0.25
_RTT_OFFSET = 68
"""Of tcpi_rtt, in microseconds, in struct tcp_info."""

_ESTABLISHED = 1


def listen(address: str) -> socket.socket:
    """What answers a neighbour's openings; nobody has to accept them."""
    return socket.create_server((address, PORT), backlog=2 * NUM_PINGS)


def first_quartile_ms(address: str, asked_ms: float) -> float:
    """Of `round_trips_ms`: a busy host only adds."""
    times_ms = round_trips_ms(address, asked_ms)
    return sorted(times_ms)[len(times_ms) // 4]


def round_trips_ms(address: str, asked_ms: float) -> list[float]:
    """Round trips of up to `NUM_PINGS` openings; lost openings are left out.

    Args:
        address: of a worker who listens.
        asked_ms: what to expect.

    Raises:
        ConnectionError: if the worker listens no more.
        TimeoutError: if none is answered.
    """
    attempts = [socket.socket() for _ in range(NUM_PINGS)]
    try:
        for attempt in attempts:
            attempt.setblocking(False)
            attempt.connect_ex((address, PORT))
            time.sleep(_INTERVAL_S)
        in_time_s = time.monotonic() + _PATIENCE_S + 2e-3 * asked_ms
        patience_s = tcp_rate.limit_s(1e-3 * asked_ms)
        limit_s = time.monotonic() + patience_s
        while len(times_ms := _answered_ms(attempts)) < NUM_PINGS:
            if time.monotonic() > (in_time_s if times_ms else limit_s):
                break
            time.sleep(_INTERVAL_S)
    finally:
        for attempt in attempts:
            attempt.close()
    if not times_ms:
        raise TimeoutError(f"silent for {patience_s:g} s")
    return times_ms


def _answered_ms(attempts: list[socket.socket]) -> list[float]:
    errors = {attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for attempt in attempts}
    if errors & {errno.ECONNREFUSED, errno.ECONNRESET}:
        raise ConnectionError("it listens no more")
    infos = [attempt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128) for attempt in attempts]
    established = [info for info in infos if info[0] == _ESTABLISHED]
    return [struct.unpack_from("=I", info, _RTT_OFFSET)[0] / 1000 for info in established]
