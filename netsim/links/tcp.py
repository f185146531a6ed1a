"""TCP as the workers use it: set for a condition, and read back from the kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.units import bytes_per_s
from netsim.errors import NamespaceError
from netsim.links import counters, netlink
from netsim.links.netlink import INTERFACE

AMPLE_RATIO = 4
"""Ample buffers hold so many bandwidth-delay products: CUBIC needs about two, and Linux counts its
own overhead in."""

AMPLE_BYTES = 4 << 20
"""And no less."""

UNSENT_BYTES = 131_072
"""That a connection takes from its program ahead of sending them. Linux knows no limit but the
buffer, so that a program goes on while a megabyte of its last message still has to leave, and
workers that exchange with one peer after the other hold each other up: 4 gloo workers that
exchanged 1.7 MB with both neighbours at 200 Mbit/s and 10 ms took 188 to 322 ms a step in seven
runs without a limit, and 189 to 206 in ten with it. Several connections for one message share it
(`share_unsent`): with as much on each of 8, exchanges of 1.6 MB over slow_tcp took 537 ms, and 289
with an eighth of it.
"""

_WMEM, _RMEM = "tcp_wmem", "tcp_rmem"
_SLOW_START = "tcp_slow_start_after_idle"
_UNSENT = "tcp_notsent_lowat"
_MAX_BYTES = 2**31 - 1
_SAMPLE = 8


@dataclass(frozen=True, kw_only=True)
class TcpSettings:
    """What holds in a worker's namespace, as the kernel tells it.

    Args:
        congestion_control: of its routes; None: the host's own, whichever that is.
        wmem_max_bytes: to which a connection's send buffer may grow.
        rmem_max_bytes: to which a connection's receive buffer may grow.
        slow_start_after_idle: whether a connection's window closes while nothing is sent.
        unsent_bytes: that a connection takes from its program ahead of sending them; all streams
            of a message together.
        max_segments: how many frames are handed down at once (GSO); 1 where loss was asked for.
        mtu: bytes of an IP packet that fit into a frame.
    """

    congestion_control: str | None
    wmem_max_bytes: int
    rmem_max_bytes: int
    slow_start_after_idle: bool
    unsent_bytes: int
    max_segments: int
    mtu: int


def bandwidth_delay_bytes(condition: NetworkCondition, num_workers: int) -> int:
    """The largest product of rate and round trip between any two workers, at any time."""
    largest = 0.0
    for sender, receiver in permutations(_sample(condition, num_workers), 2):
        for at_s in condition.times_s:
            there = condition.path(sender, receiver, at_s)
            back = condition.path(receiver, sender, at_s)
            rtt_ms = there.delay_ms + there.jitter_ms + back.delay_ms + back.jitter_ms
            largest = max(largest, bytes_per_s(there.rate_mbit or 0) * rtt_ms / 1000)
    return round(largest)


def _sample(condition: NetworkCondition, num_workers: int) -> list[int]:
    """Ranks between which there is every kind of path: workers beyond the named ones are alike,
    but for their node.
    """
    unnamed = 1 + condition.max_rank_named
    ranks = set(range(max(_SAMPLE, 1 + unnamed)))
    if condition.nodes is not None:
        size = condition.nodes["size"]
        next_node = (unnamed // size + 1) * size
        ranks |= {next_node, next_node + 1}
    return sorted(rank for rank in ranks if rank < num_workers)


def apply(condition: NetworkCondition) -> None:
    """Set what the condition says of TCP, and `UNSENT_BYTES`, in this worker's namespace, once its
    link is up. What it does not say stays as the host has it.

    Raises:
        NamespaceError: if the kernel lacks the algorithm, or refuses the rest.
    """
    if condition.congestion_control is not None:
        netlink.set_congestion_control(INTERFACE, condition.congestion_control)
    if condition.tcp_slow_start_after_idle is not None:
        _write(_SLOW_START, [int(condition.tcp_slow_start_after_idle)])
    for name, most_kb in (
        (_WMEM, condition.tcp_wmem_max_kb),
        (_RMEM, condition.tcp_rmem_max_kb),
    ):
        if most_kb is not None:
            _set_buffer(name, round(1000 * most_kb))
    _write(_UNSENT, [UNSENT_BYTES])


def share_unsent(streams: int) -> None:
    """Let connections of this namespace take together what else one takes ahead of sending it: so
    many carry each message. Raises `NamespaceError` as `apply`.
    """
    _write(_UNSENT, [UNSENT_BYTES // streams])


@contextmanager
def ample_buffers(condition: NetworkCondition, num_workers: int) -> Iterator[None]:
    """Within, new connections of this namespace have buffers that no link of the condition waits
    for, whatever it says of buffers: they measure the links.
    """
    before = {name: _read(name) for name in (_WMEM, _RMEM)}
    wanted = max(AMPLE_BYTES, AMPLE_RATIO * bandwidth_delay_bytes(condition, num_workers))
    scant = {name: values for name, values in before.items() if values[2] < wanted}
    for name in scant:
        _set_buffer(name, min(_MAX_BYTES, wanted))
    try:
        yield
    finally:
        for name, values in scant.items():
            _write(name, values)


def read() -> TcpSettings:
    """The settings in this worker's namespace."""
    return TcpSettings(
        congestion_control=netlink.congestion_control(INTERFACE),
        wmem_max_bytes=_read(_WMEM)[2],
        rmem_max_bytes=_read(_RMEM)[2],
        slow_start_after_idle=bool(_read(_SLOW_START)[0]),
        unsent_bytes=_read(_UNSENT)[0],
        max_segments=netlink.max_segments(INTERFACE),
        mtu=counters.mtu(INTERFACE),
    )


def _set_buffer(name: str, most: int) -> None:
    """A connection begins with the second number, so that this is no larger either."""
    least, default, _ = _read(name)
    _write(name, [min(least, most), min(default, most), most])


def _read(name: str) -> list[int]:
    with open(f"/proc/sys/net/ipv4/{name}") as file:
        return [int(word) for word in file.read().split()]


def _write(name: str, values: list[int]) -> None:
    value = " ".join(map(str, values))
    try:
        # Unbuffered: else a refusal shows when the file is closed, after everything seemed well.
        with open(f"/proc/sys/net/ipv4/{name}", "wb", buffering=0) as file:
            file.write(value.encode())
    except OSError as error:
        raise NamespaceError(
            f"The kernel refused ({error.strerror}) net.ipv4.{name} = {value} in a worker's "
            f"namespace: mount /proc/sys for writing."
        ) from error
