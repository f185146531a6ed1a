"""The costs that hosts and their communication library add to a network, for each library.

`python -m netsim calibrate` measures them for gloo; they are plain numbers, as in YAML.
"""

import math
from dataclasses import dataclass, fields, replace

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import check_number, segment_bytes
from netsim.timeline.tcp.throughput import (
    INITIAL_WINDOW_BYTES,
    LINUX_RMEM_BYTES,
    LINUX_WINDOW_BYTES,
    LINUX_WMEM_BYTES,
    SEGMENT_BYTES,
    socket_window_bytes,
)

_MOVERS = ("bytes_per_s", "local_bytes_per_s", "switch_bytes_per_s")
_MOVERS += ("messages_per_s", "local_messages_per_s", "switch_messages_per_s")
_MOVERS += ("segment_bytes", "mss_bytes", "initial_window_bytes", "max_window_bytes")

SWITCH_BULK_BYTES = 3000
"""More at once, and the switch looks for packets now and then alone (`netsim.links.switch`)."""

_OPTIONAL = (("chunk_bytes", "a tree"), ("gather_segment_bytes", "no limit"))
_OPTIONAL += (("own_buffer_bytes", "no limit"),)


@dataclass(frozen=True, kw_only=True)
class SharedHost:
    """What all workers of a host move and handle together at the most. `has_switch`: it also
    carries every packet through the switch.
    """

    bytes_per_s: float
    messages_per_s: float
    has_switch: bool = False

    def seconds(self, num_bytes: float, num_messages: float) -> float:
        """For which the host's processors are busy with so much of all workers."""
        return num_bytes / self.bytes_per_s + num_messages / self.messages_per_s


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How a library moves messages over TCP. The defaults are gloo's, fitted to 4 processes on 2
    cores by

        python -m netsim calibrate --out results/validation/gloo.yaml

    but for those that these measurements do not tell: from `num_segments` on, except
    `straggling_bytes`; `message_s`, which an earlier fit gave; and `switch_bytes_per_s`, which
    is 1.4 ns a byte for a processor (`python -m netsim calibrate --processor`).
    `local_messages_per_s` is of 2, 8 and 32 workers: 34 us a message for a processor.

    gloo's ring has two segments of at most 1 MiB in flight (gloo/allreduce.cc, `maxSegmentSize`),
    that of an all-gather two halves of a piece (gloo/allgather.cc).

    Args:
        operation_s: what starting and ending one operation takes, however small it is.
        message_s: added to every one-way delay: a thread is woken, a packet passes two stacks.
        bytes_per_s: that a worker moves at the most, however fast its link is.
        local_bytes_per_s: that all workers move together if they share one host's processors.
        messages_per_s: that a worker handles at the most: each further message of an operation
            begins so much later.
        local_messages_per_s: that all workers handle together if they share one host's processors.
        switch_bytes_per_s: the same of bytes, if those also carry every packet through the switch.
        switch_messages_per_s: the same of messages.
        switch_nap_s: that this switch adds to the one-way delay of messages of more than
            `SWITCH_BULK_BYTES`: while there are many packets, it looks for them every 0.4 ms, so
            one waits for half as long on the mean.
        num_segments: into which a ring cuts each of its pieces, all in flight at the same time; of
            more segments, so many are in flight.
        segment_bytes: that a segment of an all-reduce has at the most.
        gather_segment_bytes: the same of an all-gather; None: it has `num_segments`, however large.
        rendezvous: whether data leaves only when the receiver has sent word that it is ready.
        socket_bytes: that a sender hands over at once, on all streams together; then it is done, if
            a message has no more.
        straggling_bytes: that the last of several flows over a link still has to move when the
            others are done, see `patterns.pairs`.
        has_trees: whether all-reduce takes a double binary tree where that is faster.
        halving_doubling_bytes: all-reduces of up to so many bytes go by recursive halving and
            doubling, see `netsim.timeline.halving_doubling`.
        chunk_bytes: in which a broadcast goes along a chain of all workers; None: it goes down a
            tree, whole. See `netsim.timeline.broadcasts`.
        mss_bytes: TCP's data in a full frame, of the network's MTU.
        initial_window_bytes: of TCP.
        max_window_bytes: that a connection has in flight at the most: of the hosts' socket buffers
            (`throughput.socket_window_bytes`), or of the library's own, whichever is less.
        own_buffer_bytes: of the library's, for each connection; None: it limits nothing.
        streams: connections between each two workers over which an operation is striped.
        smallest_part_bytes: operations of less for each stream take fewer.
        slow_start_after_idle: whether pauses close TCP's windows, as the sysctl of that name says.

    Raises:
        ValueError: for a value that no transport can have.
    """

    operation_s: float = 1e-6
    message_s: float = 5.78e-5
    bytes_per_s: float = 4.35e9
    local_bytes_per_s: float = 8.7e9
    messages_per_s: float = 2.975e4
    local_messages_per_s: float = 5.95e4
    switch_bytes_per_s: float = 1.4e9
    switch_messages_per_s: float = 1.33e4
    switch_nap_s: float = 2e-4
    num_segments: int = 2
    segment_bytes: float = 1_048_576
    gather_segment_bytes: float | None = None
    rendezvous: bool = True
    socket_bytes: float = 131_072  # netsim.links.tcp.UNSENT_BYTES
    straggling_bytes: float = 2.49e5
    has_trees: bool = False
    halving_doubling_bytes: float = 0
    chunk_bytes: float | None = None
    mss_bytes: float = SEGMENT_BYTES
    initial_window_bytes: float = INITIAL_WINDOW_BYTES
    max_window_bytes: float = LINUX_WINDOW_BYTES
    own_buffer_bytes: float | None = None
    streams: int = 1
    smallest_part_bytes: float = 16_384  # bagua_algos.communication.stripes.SMALLEST_PART_BYTES
    slow_start_after_idle: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is float:
                check_number(field.name, getattr(self, field.name))
        for name in _MOVERS:
            if not getattr(self, name):
                raise ValueError(f"{name}=0 moves nothing: choose more.")
        for name in ("num_segments", "streams"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be at least 1, not {getattr(self, name)}.")
        for name, without in _OPTIONAL:
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(
                    f"{name} has to be at least 1, or null for {without}, not {value}."
                )

    def parts(self, num_bytes: float) -> int:
        """Into how many parts a tensor is cut, each on a stream of its own."""
        return max(1, min(self.streams, int(num_bytes // max(self.smallest_part_bytes, 1))))

    def over(self, condition: NetworkCondition) -> "Transport":
        """These constants, with what the network says of its hosts' TCP."""
        window_bytes = self.max_window_bytes
        wmem_kb, rmem_kb = condition.tcp_wmem_max_kb, condition.tcp_rmem_max_kb
        if (wmem_kb, rmem_kb) != (None, None):
            window_bytes = min(
                socket_window_bytes(
                    LINUX_WMEM_BYTES if wmem_kb is None else 1e3 * wmem_kb,
                    LINUX_RMEM_BYTES if rmem_kb is None else 1e3 * rmem_kb,
                ),
                math.inf if self.own_buffer_bytes is None else self.own_buffer_bytes,
            )
        mss_bytes = segment_bytes(condition.mtu)
        return replace(
            self,
            mss_bytes=mss_bytes,
            initial_window_bytes=self.initial_window_bytes * mss_bytes / self.mss_bytes,
            max_window_bytes=window_bytes,
            slow_start_after_idle=self._closes_windows(condition),
        )

    def _closes_windows(self, condition: NetworkCondition) -> bool:
        """BBR never does (Linux, tcp_slow_start_after_idle_check)."""
        after_idle = condition.tcp_slow_start_after_idle
        asked = self.slow_start_after_idle if after_idle is None else after_idle
        return asked and condition.congestion_control != "bbr"

    def unused_s(self, rtt_s: float) -> float:
        """For how long a connection sends nothing between two operations without a pause: its last
        bytes are on their way, and with a rendezvous then the receiver's word for the next ones.
        """
        return rtt_s if self.rendezvous else rtt_s / 2

    def host(self, backend: str | None) -> "SharedHost":
        """The host that all workers share behind `backend`; None: each has one of its own."""
        if backend is None:
            return SharedHost(bytes_per_s=math.inf, messages_per_s=math.inf)
        if backend == "switch":
            return SharedHost(
                bytes_per_s=self.switch_bytes_per_s,
                messages_per_s=self.switch_messages_per_s,
                has_switch=True,
            )
        return SharedHost(
            bytes_per_s=self.local_bytes_per_s, messages_per_s=self.local_messages_per_s
        )


GLOO = Transport()
NCCL = Transport(
    operation_s=3e-5,
    message_s=1e-5,
    bytes_per_s=2e10,
    messages_per_s=1e6,
    gather_segment_bytes=1_048_576,
    rendezvous=False,
    has_trees=True,
    chunk_bytes=524_288,
    own_buffer_bytes=4 << 20,
    streams=2,
    smallest_part_bytes=0,
)
"""Estimates, not measurements. NCCL_BUFFSIZE is 4 MiB for each channel, in 8 steps of 512 KiB
(NCCL_STEPS). A chunk of a broadcast is one of them (BROADCAST_CHUNKSTEPS), a chunk of an all-reduce
or all-gather four, in two slices: these are its segments (ALLREDUCE_CHUNKSTEPS and _SLICESTEPS in
src/include/collectives.h). A worker sends the next chunk when it has had the one before
(src/device/all_reduce.h). A channel's socket holds less than NCCL_BUFFSIZE. It takes 2 channels
where nothing but the network joins the ranks, and is taken to spread an operation over both,
however small.
"""
