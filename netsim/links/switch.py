"""The switch in user space: one process that carries every packet between the workers' links.

For kernels without netem, and for links that change over time. It needs no bridge, and no rights
outside its own namespace. Its timer is good to some 50 microseconds. Under bulk traffic it
moderates its wake-ups, as network cards do their interrupts: it looks for packets every `_NAP_S`,
and counts with the time when the kernel got them.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any

from host.processes import fork
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition, frame_bytes
from netsim.errors import NamespaceError
from netsim.links import netlink, tbf
from netsim.links.forwarding import Forwarder
from netsim.links.netlink import INTERFACE, mac_address, port_name
from netsim.links.port import Port

MIN_DELAY_MS = 0.05
MAX_WORKERS = 500
"""`select` takes 1023 descriptors."""

_NAP_S = 4e-4
_BULK_BYTES = 3000
"""At once, after which the switch naps: not after a ping, which then comes on time."""

_RING_BYTES = 1024**3
_ANSWER_LIMIT_S = 10
_CLOCK = struct.Struct("=8sd")
"""The word that sets the condition's time, and the time."""
_PR_SET_TIMERSLACK = 29
_PR_SET_NAME = 15
_M_TRIM_THRESHOLD = -1
PROCESS_NAME = "netsim-switch"
"""What `ps` and /proc/PID/comm call the switch, a child of the hub beside the workers."""


@dataclass(frozen=True, kw_only=True)
class SwitchCounters:
    """What the switch has done since it began.

    `num_lost`: by `loss_pct`. `num_dropped`: by full queues. `num_unread`: because the switch came
    too late to read them, which no link of the condition does. `num_refused`: by interfaces, as
    their worker had ended. `cpu_s`: processor time.
    """

    num_forwarded: int
    num_lost: int
    num_dropped: int
    num_unread: int
    num_refused: int
    cpu_s: float


def check_switch(link: LinkCondition) -> None:
    """Refuse a delay that is below the reach of a process's timer.

    Raises:
        ValueError: with the delay.
    """
    if 0 < link.delay_ms < MIN_DELAY_MS:
        raise ValueError(
            f"delay_ms={link.delay_ms} is under {MIN_DELAY_MS}, below the reach of the timer of "
            f"a switch in user space: choose 0 or more, or simulate this network."
        )


class SwitchShaper:
    """The switch as the hub sees it; see `shaper.Shaper`."""

    name = "switch"

    def __init__(self, condition: NetworkCondition, num_workers: int) -> None:
        if num_workers > MAX_WORKERS:
            raise NamespaceError(
                f"The switch in user space has {MAX_WORKERS} ports and {num_workers} workers were "
                f"asked for: take fewer, or a kernel with the module sch_netem."
            )
        self._condition = condition
        self._num_joined = 0
        every_link = condition.all_links(num_workers)
        self._single_frames = any(link.loss_pct for link in every_link)
        self._ours, self._switchs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_ANSWER_LIMIT_S)

    def add_worker(self, rank: int, pid: int) -> None:
        """Make the link; the hub's end stays unshaped."""
        port = port_name(rank)
        netlink.add_veth(
            port,
            mtu=self._condition.mtu,
            peer=INTERFACE,
            peer_pid=pid,
            peer_mac=mac_address(rank),
        )
        netlink.bring_up(port)
        self._num_joined += 1

    def set_up_worker(self, rank: int) -> None:
        """Hold back what the worker sends, and hand it over frame by frame where loss is asked.

        TCP keeps few bytes in a queue of its own host, as with a real network card, but would
        fill one that it does not see: acknowledgements then wait behind data, and flows starve.
        So the kernel's token bucket, if there is one, lets no more through than the uplink takes.
        Its queue ends at the kernel's 4 GiB, even if the link's does not.
        """
        if self._single_frames:
            netlink.send_single_frames(INTERFACE)  # else loss hits 64 KB at once
        ups = [self._condition.link(rank, "up", at_s) for at_s in self._condition.times_s]
        rates = [up.rate_mbit or tbf.MAX_RATE_MBIT for up in ups]
        fastest = ups[rates.index(max(rates))]
        if fastest.rate_mbit is not None and fastest.rate_mbit <= tbf.MAX_RATE_MBIT:
            bucket = LinkCondition(rate_mbit=fastest.rate_mbit, queue_ms=fastest.queue_ms)
            netlink.add_qdisc(INTERFACE, tbf.qdisc(bucket))

    def start(self) -> None:
        """Fork the switch.

        Raises:
            NamespaceError: if it does not begin; and later, in whatever the hub does, if it ends.
        """
        self.pid = fork(self._run)
        self._switchs.close()
        self._ask(b"started")
        signal.signal(signal.SIGCHLD, self._on_child)

    def start_clock(self, at_s: float = 0.0) -> None:
        """Begin the condition's time with `at_s`, or set it to that."""
        self._ours.send(_CLOCK.pack(b"clock", at_s))

    def counters(self) -> SwitchCounters:
        """What the switch has done so far; one process of the hub's may ask at a time."""
        return SwitchCounters(**json.loads(self._ask(b"counters")))

    def _ask(self, word: bytes) -> bytes:
        try:
            self._ours.send(word)
            answer = self._ours.recv(4096)
        except OSError:
            answer = b""
        if not answer:
            raise NamespaceError("The switch that joins the workers does not answer: has it died?")
        return answer

    def _on_child(self, *_: object) -> None:
        with suppress(ChildProcessError):  # gone: someone who waits for any child has got it
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.pid, flags) is None:
                return
        raise NamespaceError(
            "The switch that joins the workers has died, and their network with it."
        )

    def _run(self) -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the hub's end is its end
        _close_all_but(self._switchs.fileno())
        _hurry()
        block_bytes = 2**20
        num_blocks = max(1, min(12, _RING_BYTES // block_bytes // self._num_joined))
        with self._switchs, ExitStack() as stack:
            most_bytes = frame_bytes(self._condition.mtu) if self._single_frames else None
            ports = [
                Port(port_name(rank), most_bytes=most_bytes, num_blocks=num_blocks)
                for rank in range(self._num_joined)
            ]
            for port in ports:
                stack.callback(port.close)
            return _Switch(self._condition, ports, self._switchs).run()


class _Switch:
    def __init__(
        self, condition: NetworkCondition, ports: list[Port], control: socket.socket
    ) -> None:
        self._condition = condition
        self._ports = ports
        self._control = control
        self._forwarder = Forwarder(condition, list(ports))
        self._ranks = {port: rank for rank, port in enumerate(ports)}
        self._emptied_s = dict.fromkeys(ports, 0.0)
        self._began_s: float | None = None
        self._change_s: float | None = None

    def run(self) -> int:
        while True:
            now_s = time.monotonic()
            if self._change_s is not None and now_s >= self._change_s:
                self._change(now_s)
            self._read(now_s)
            if self._forwarder.deliver(now_s) > _BULK_BYTES:
                ready, _, _ = select.select([self._control], [], [], _NAP_S)
            else:
                ready = self._await_packets()
            if self._control in ready and not self._obey(self._control.recv(_CLOCK.size)):
                return 0

    def _read(self, now_s: float) -> None:
        wall_minus_now_s = time.time() - now_s  # each time, as the wall clock may be set
        for port, rank in self._ranks.items():
            emptied_s = self._emptied_s[port]  # whatever the packets' stamps say, they came since
            for arrived_wall_s, packet in port.packets():
                arrived_s = min(now_s, max(arrived_wall_s - wall_minus_now_s, emptied_s))
                self._forwarder.take(rank, packet, arrived_s)
            if port.was_emptied:
                self._emptied_s[port] = now_s

    def _await_packets(self) -> list[Any]:
        """What is ready, once a packet has come or is due."""
        dues = [due for due in (self._forwarder.next_due_s, self._change_s) if due is not None]
        wait_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        ready, _, _ = select.select([self._control, *self._ranks], [], [], wait_s)
        for port in ready:
            if isinstance(port, Port) and port.is_gone():
                del self._ranks[port]
        return ready

    def _obey(self, word: bytes) -> bool:
        """False: nobody is left to serve."""
        if word.startswith(b"clock"):
            now_s = time.monotonic()
            self._began_s, self._change_s = now_s - _CLOCK.unpack(word)[1], None
            self._change(now_s)
        elif word == b"started":
            self._control.send(b"yes")
        elif word == b"counters":
            self._control.send(json.dumps(asdict(self._counters())).encode())
        return bool(word)

    def _change(self, now_s: float) -> None:
        assert self._began_s is not None
        at_s = max(now_s, self._change_s or now_s) - self._began_s
        self._forwarder.change(at_s)
        next_s = self._condition.next_change_s(at_s)
        self._change_s = None if next_s is None else self._began_s + next_s

    def _counters(self) -> SwitchCounters:
        return SwitchCounters(
            num_forwarded=self._forwarder.num_forwarded,
            num_lost=sum(link.num_lost for link in self._forwarder.links),
            num_dropped=sum(link.num_dropped for link in self._forwarder.links),
            num_unread=sum(port.num_unread() for port in self._ports),
            num_refused=self._forwarder.num_refused,
            cpu_s=time.process_time(),
        )


def _close_all_but(kept: int) -> None:
    """Close inherited files: a reader that waits for the end of a pipe must not wait for the
    switch.
    """
    last = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, kept)
    os.closerange(kept + 1, last)


def _hurry() -> None:
    """No timer rounded, no pause for garbage, no memory returned; first in line if one may be."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, PROCESS_NAME.encode(), 0, 0, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # packets of 64 KB would be got and given back one by one
    gc.freeze()
    gc.disable()
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
