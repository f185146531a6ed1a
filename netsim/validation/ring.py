"""A ring all-reduce by plain sockets, without the arithmetic: what a network makes of one."""

import select
import socket
import time

from netsim.conditions.link import LinkCondition, wire_per_payload
from netsim.proof import tcp_rate

_BLOCK = bytes(256 * 1024)


def seconds_in_theory(path: LinkCondition, num_workers: int, num_bytes: int) -> float:
    """Seconds of 2(N-1) steps; in each, every worker sends one Nth at the rate after the delay."""
    assert path.rate_mbit is not None
    num_steps = 2 * (num_workers - 1)
    wire_bytes = num_bytes / num_workers * wire_per_payload()
    return num_steps * (wire_bytes * path.seconds_per_byte + path.delay_ms / 1000)


def all_reduce_seconds(
    rank: int, addresses: list[str], num_bytes: int, *, num_times: int = 1
) -> list[float]:
    """How long each of several all-reduces takes; every worker calls it at about the same time."""
    outgoing, incoming = tcp_rate.join_ring(rank, addresses)
    chunk_bytes = num_bytes // len(addresses)
    durations = []
    with outgoing, incoming:
        outgoing.setblocking(False)
        incoming.setblocking(False)
        _step(outgoing, incoming, 1)  # all are there
        for _ in range(num_times):
            begin_s = time.monotonic()
            for _ in range(2 * (len(addresses) - 1)):
                _step(outgoing, incoming, chunk_bytes)
            durations.append(time.monotonic() - begin_s)
        _step(outgoing, incoming, 1)  # none may close while another still receives
    return durations


def _step(outgoing: socket.socket, incoming: socket.socket, num_bytes: int) -> None:
    """Send `num_bytes` to the next worker while as many arrive from the worker before.

    `tcp_rate` sends for a time instead, and looks at each arrival.
    """
    to_send = to_receive = num_bytes
    buffer = bytearray(1024 * 1024)
    while to_send or to_receive:
        readable, writable, _ = select.select(
            [incoming] if to_receive else [], [outgoing] if to_send else [], [], tcp_rate.LIMIT_S
        )
        if not readable and not writable:
            raise TimeoutError(f"silent for {tcp_rate.LIMIT_S} s")
        if readable:
            received = incoming.recv_into(buffer, min(to_receive, len(buffer)))
            if not received:
                raise ConnectionError("the connection was closed")
            to_receive -= received
        if writable:
            to_send -= outgoing.send(memoryview(_BLOCK)[:to_send])
