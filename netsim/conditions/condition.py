"""What the network between workers is like: the same for all, or by worker, node and time.

    worker 0 --up-->|        |--up-->        --down-->|        |--down--> worker 2
    worker 1 --up-->| node 0 |        (core)          | node 1 |--down--> worker 3

Without `nodes`, every uplink leads straight to every downlink. Rates and queues hold on each link
that a packet crosses. Delay, jitter and loss belong to a path: values for all, for a worker or for
a moment apply once, on the uplink of the packet's sender. So the round trip between two workers
takes twice `delay_ms`. Only `down` puts these values on a downlink too.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

from netsim.conditions.faults import Fault, parse_fault
from netsim.conditions.link import (
    LINK_FIELDS,
    MTU,
    ONCE_FIELDS,
    LinkCondition,
    check_keys,
    check_number,
    in_series,
)
from netsim.conditions.timetable import Timetable, from_schedule, from_trace

Direction = Literal["up", "down"]
BACKENDS = ("netem", "tbf", "switch")

MIN_BUFFER_KB = 16
"""Of less Linux makes more by itself, for a few full frames with its own overhead."""
MAX_BUFFER_KB = 2_147_483
"""The kernel counts bytes in 31 bits."""
MIN_MTU, MAX_MTU = 576, 9_216
"""What every IPv4 host takes; the largest that network cards commonly have."""


@dataclass(frozen=True, kw_only=True)
class NetworkCondition:
    """The links of all workers; each later group of values overrides those before it.

    `queue_ms` has a long default that holds the 4 MB which a Linux TCP sender may have in flight
    (`tcp_wmem`) at 100 Mbit/s, so that one flow never loses a packet to the queue: with 100 ms,
    some all-reduces took half as long again for CUBIC's recovery. Lower it to study congestion.

    Args:
        rate_mbit: of every link; see `LinkCondition` for this and the next four.
        delay_ms: one way, from worker to worker.
        jitter_ms: the delay varies by as much to both sides.
        loss_pct: one way, from worker to worker.
        queue_ms: of the queue before every link.
        congestion_control: TCP's algorithm; None: the host's own.
        tcp_slow_start_after_idle: whether a connection that has been idle for a retransmission
            timeout begins again with a small window (RFC 2861); None: Linux's own, which is true.
        tcp_wmem_max_kb: to which a connection's send buffer may grow, in 1,000 bytes; None: the
            host's own. With the next one it bounds what is in flight: one connection carries a
            window a round trip.
        tcp_rmem_max_kb: to which a connection's receive buffer may grow, in 1,000 bytes; None: the
            host's own. About half of it is for data.
        mtu: bytes of an IP packet that fit into a frame, of every interface: 9000 for jumbo frames.
        backend: one of `BACKENDS`; None: the best that the kernel has.
        schedule: steps over time, a list of {at_s: 60, rate_mbit: 10, ...}, each in place of the
            one before it: what it does not name is as without a schedule. Time begins at 0 when
            training does, and a resumed run goes on at its checkpoint's time.
        trace: a CSV file of such steps, replayed again and again; see `timetable.from_trace`.
        up: overrides for all uplinks, from a worker to the network.
        down: overrides for all downlinks.
        workers: overrides by rank, each with `up` and `down` of its own if need be.
        nodes: {size: 2, between: {rate_mbit: 100, delay_ms: 10}}: every two workers share a node,
            and nodes a link to each other; `between` is a `LinkCondition`, unshaped by default.
        faults: a list of {worker: 1, at_s: 5, for_s: 2}; see `faults.parse_fault`.

    Raises:
        ValueError: for a value that no network can have.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0
    jitter_ms: float = 0
    loss_pct: float = 0
    queue_ms: float = 400
    congestion_control: str | None = "cubic"
    tcp_slow_start_after_idle: bool | None = None
    tcp_wmem_max_kb: float | None = None
    tcp_rmem_max_kb: float | None = None
    mtu: int = MTU
    backend: str | None = None
    schedule: Sequence[Mapping[str, Any]] | None = None
    trace: str | os.PathLike[str] | None = None
    up: Mapping[str, Any] | None = None
    down: Mapping[str, Any] | None = None
    workers: Mapping[int, Mapping[str, Any]] | None = None
    nodes: Mapping[str, Any] | None = None
    faults: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        LinkCondition(**{name: getattr(self, name) for name in LINK_FIELDS} | {"jitter_ms": 0})
        check_number("jitter_ms", self.jitter_ms)  # a link may have another delay than this one
        self._check_names()
        self._check_kinds()
        self._check_tcp()
        self._check_mtu()
        for direction in ("up", "down"):
            check_keys(direction, getattr(self, direction) or {}, LINK_FIELDS)
        ranks = [-1, *self._workers]  # -1: any worker that has nothing of its own
        for overrides in self._workers.values():
            check_keys("A worker's entry in workers", overrides, (*LINK_FIELDS, "up", "down"))
            for direction in ("up", "down"):
                check_keys(f"A worker's {direction}", overrides.get(direction) or {}, LINK_FIELDS)
        for rank in ranks:
            for at_s in self.times_s:
                self.link(rank, "up", at_s)
                self.link(rank, "down", at_s)
        if self.nodes is not None:
            self._check_nodes()
        assert isinstance(self._faults, tuple)

    def link(self, rank: int, direction: Direction, at_s: float | None = None) -> LinkCondition:
        """One direction of a worker's link at a time since training began, in seconds; None: before
        it begins, when there are no outages and the rest is as at 0.
        """
        shared = {name: getattr(self, name) for name in LINK_FIELDS}
        shared |= self._timetable.overrides(at_s or 0.0)
        worker = dict(self._workers.get(rank, {}))
        own = {d: worker.pop(d, None) or {} for d in ("up", "down")}
        if direction == "down":
            shared |= dict.fromkeys(ONCE_FIELDS, 0)
            worker = {name: value for name, value in worker.items() if name not in ONCE_FIELDS}
        values = shared | dict(getattr(self, direction) or {}) | worker | dict(own[direction])
        if at_s is not None and any(fault.is_down(rank, at_s) for fault in self._faults):
            values["loss_pct"] = 100
        return LinkCondition(**values)

    def node_link(self, direction: Direction) -> LinkCondition:
        """One direction of every node's link to the other nodes."""
        values = dict((self.nodes or {}).get("between") or {})
        if direction == "down":
            values |= dict.fromkeys(ONCE_FIELDS, 0)
        return LinkCondition(**values)

    def node(self, rank: int) -> int:
        """The node that a worker is on; 0 where there are no nodes."""
        return 0 if self.nodes is None else rank // self.nodes["size"]

    def path(self, sender: int, receiver: int, at_s: float | None = None) -> LinkCondition:
        """All links from one worker to another, as one, at a time as in `link`."""
        links = [self.link(sender, "up", at_s), self.link(receiver, "down", at_s)]
        if self.node(sender) != self.node(receiver):
            links[1:1] = [self.node_link("up"), self.node_link("down")]
        return in_series(links)

    def next_change_s(self, at_s: float) -> float | None:
        """When any link changes next after a time; None: never."""
        sources = (self._timetable, *self._faults)
        changes = [source.next_change_s(at_s) for source in sources]
        next_s = min((change for change in changes if change is not None), default=None)
        assert next_s is None or next_s > at_s, f"the change after {at_s} s is at {next_s} s"
        return next_s

    @property
    def varies(self) -> bool:
        """Whether it changes over time."""
        return self.next_change_s(-1) is not None

    @property
    def times_s(self) -> list[float]:
        """Times that stand for all there are, outages apart."""
        return [0.0, *(at_s for at_s, _ in self._timetable.steps)]

    @property
    def max_rank_named(self) -> int:
        """The highest rank that has overrides of its own; -1 if none has."""
        return max(self._workers, default=-1)

    def all_links(self, num_workers: int) -> list[LinkCondition]:
        """Every different link that there ever is, but for outages."""
        healthy = self._without_faults
        links = [
            healthy.link(rank, direction, at_s)
            for rank in (r for r in (-1, *self._workers) if r < num_workers)
            for at_s in self.times_s
            for direction in ("up", "down")
        ]
        return list(dict.fromkeys([*links, self.node_link("up"), self.node_link("down")]))

    def check_num_workers(self, num_workers: int) -> None:
        """Refuse ranks that do not exist among `num_workers` workers.

        Raises:
            ValueError: with the rank.
        """
        named = {"workers": tuple(self._workers)}
        for fault in self._faults:
            named["faults"] = named.get("faults", ()) + fault.workers
        for name, ranks in named.items():
            if max(ranks, default=0) >= num_workers:
                raise ValueError(
                    f"{name} names the rank {max(ranks)}, and {num_workers} workers have the "
                    f"ranks 0 to {num_workers - 1}: choose one of these."
                )

    @cached_property
    def _timetable(self) -> Timetable:
        if self.trace is not None:
            return from_trace(self.trace)
        return from_schedule(self.schedule or ())

    @cached_property
    def _faults(self) -> tuple[Fault, ...]:
        return tuple(parse_fault(entry) for entry in self.faults or ())

    @cached_property
    def _workers(self) -> dict[int, Mapping[str, Any]]:
        given = {} if self.workers is None else self.workers
        if not isinstance(given, Mapping) or not all(map(_is_rank, given)):
            raise ValueError(f"workers maps ranks to overrides: {self.workers!r} does not.")
        workers = {int(rank): overrides for rank, overrides in given.items()}
        if len(workers) < len(given):
            raise ValueError(f"workers names a rank twice: {self.workers!r}; name each once.")
        if min(workers, default=0) < 0:
            raise ValueError(f"workers names the rank {min(workers)}: ranks begin at 0.")
        return workers

    @cached_property
    def _without_faults(self) -> "NetworkCondition":
        return replace(self, faults=None)

    def _check_names(self) -> None:
        if self.backend not in (None, *BACKENDS):
            raise ValueError(
                f"There is no back end {self.backend!r}: choose {', '.join(BACKENDS)}, or null "
                f"for the best that the kernel has."
            )
        algorithm = self.congestion_control
        is_name = isinstance(algorithm, str) and re.fullmatch(r"[a-z0-9_]{1,15}", algorithm)
        if algorithm is not None and not is_name:
            raise ValueError(
                f"congestion_control={algorithm!r} is no name of an algorithm of TCP's: choose "
                f"cubic, reno, bbr or another that the kernel has, or null for its default."
            )
        if self.trace is not None and self.schedule is not None:
            raise ValueError(
                f"trace={self.trace!r} and schedule both say what holds when: choose one of them."
            )

    def _check_kinds(self) -> None:
        if self.trace is not None and not isinstance(self.trace, str | os.PathLike):
            raise ValueError(f"trace={self.trace!r} is no path: name a CSV file.")
        for name in ("schedule", "faults"):
            steps = getattr(self, name)
            is_list = isinstance(steps, Sequence) and not isinstance(steps, str)
            if steps is not None and not is_list:
                raise ValueError(f"{name}={steps!r} is no list: write it as [{{at_s: 5, ...}}].")

    def _check_tcp(self) -> None:
        after_idle = self.tcp_slow_start_after_idle
        if after_idle is not None and not isinstance(after_idle, bool):
            raise ValueError(
                f"tcp_slow_start_after_idle={after_idle!r}: choose true, false, or null for "
                f"Linux's own."
            )
        for name in ("tcp_wmem_max_kb", "tcp_rmem_max_kb"):
            most_kb = getattr(self, name)
            if most_kb is None:
                continue
            check_number(name, most_kb)
            if not MIN_BUFFER_KB <= most_kb <= MAX_BUFFER_KB:
                raise ValueError(
                    f"{name}={most_kb}: choose {MIN_BUFFER_KB} to {MAX_BUFFER_KB:,}, or null for "
                    f"the host's own."
                )

    def _check_mtu(self) -> None:
        is_number = isinstance(self.mtu, int) and not isinstance(self.mtu, bool)
        if not is_number or not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ValueError(
                f"mtu={self.mtu!r}: choose a whole number from {MIN_MTU} to {MAX_MTU}, as 1500 or "
                f"9000."
            )

    def _check_nodes(self) -> None:
        nodes = check_keys("nodes", self.nodes, ("size", "between"))
        size = nodes.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"nodes.size is a number of workers from 1 up, not {size!r}.")
        check_keys("nodes.between", nodes.get("between") or {}, LINK_FIELDS)
        self.node_link("up")


def _is_rank(key: Any) -> bool:
    """Whether a key of `workers` is a whole number, or the text of one."""
    if isinstance(key, str):
        return re.fullmatch("-?[0-9]+", key) is not None
    return isinstance(key, Integral) and not isinstance(key, bool)
