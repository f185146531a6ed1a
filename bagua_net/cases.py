"""The cases of `python -m bagua_net.bench`, each measured over one connection of two workers."""

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bagua_net.library import build
from bagua_net.table import HANDLE_BYTES, Plugin
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.errors import ProbeError
from netsim.links.namespaces import Hub
from netsim.proof.temporary_network import run_workers

DEFAULTS = "1,2,4,8,16,8-static,8-slowed,8-static-slowed,auto"
_INTERFACE = "eth0"
_LIMIT_S = 600
_UNSHAPED_SLOW_MBIT = 100
_SLOWED_SHARE = 0.1
_SO_MAX_PACING_RATE = 47
_ANSWER_BYTES = 100
_VARIABLES = tuple(
    f"BAGUA_NET_{name}" for name in ("STREAMS", "SPLIT", "CONGESTION", "CHUNK_KB", "UNSENT_KB")
)
_PATTERN = re.compile(r"(?:(iperf3)-)?(\d+|auto)(-bbr)?(-static|-(\d+)k)?(-slowed)?")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Streams and chunks (None: left to the plugin), how messages are split, and who sends."""

    name: str
    streams: int | None
    congestion: str
    is_static: bool
    chunk_kb: int | None
    is_slowed: bool
    is_iperf3: bool

    def environment(self) -> dict[str, str]:
        """Of the plugin, while this case is measured."""
        if self.streams is None:
            return {}
        chosen = {
            "BAGUA_NET_STREAMS": str(self.streams),
            "BAGUA_NET_SPLIT": "static" if self.is_static else "dynamic",
            "BAGUA_NET_CONGESTION": self.congestion,
        }
        if self.chunk_kb is not None:
            chosen |= dict.fromkeys(
                ("BAGUA_NET_CHUNK_KB", "BAGUA_NET_UNSENT_KB"), str(self.chunk_kb)
            )
        return chosen


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each case sends: so many bytes, as messages of at most `message_bytes`, of which
    `in_flight` are under way at a time. NCCL's are of 1 MiB, and at most 4.

    Raises `ValueError` where that is nothing.
    """

    num_bytes: int
    message_bytes: int
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.message_bytes <= self.num_bytes or not 1 <= self.in_flight <= 32:
            raise ValueError(
                "A message must have at least a byte and no more than all have together, "
                f"and 1 to 32 are in flight: got {self}."
            )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All messages of one case; `choice` is what the plugin has chosen, if it was left to it."""

    mbit: float
    cpu_s_per_gb: float
    choice: str = ""


def parse_case(name: str) -> Case:
    """Such as "8", "8-static-slowed", "auto" or "iperf3-8". Raises `ValueError`."""
    match = _PATTERN.fullmatch(name)
    is_plain = match is not None and not any(match.group(3, 4, 6))
    if match is None or ((match[1] or match[2] == "auto") and not is_plain):
        raise ValueError(f"There is no case {name!r}: such as {DEFAULTS},8-bbr,8-512k,iperf3-8.")
    if match[0] == "iperf3-auto" or not 1 <= int(match[2].replace("auto", "1")) <= 64:
        raise ValueError(f"The case {name!r} needs 1 to 64 streams.")
    if match[5] and int(match[5]) < 1:
        raise ValueError(f"The case {name!r} needs chunks of at least 1 KiB.")
    return Case(
        name=name,
        streams=None if match[2] == "auto" else int(match[2]),
        congestion="bbr" if match[3] else "system",
        is_static=match[4] == "-static",
        chunk_kb=int(match[5]) if match[5] else None,
        is_slowed=bool(match[6]),
        is_iperf3=bool(match[1]),
    )


def measure(
    condition: NetworkCondition, cases: Sequence[Case], rounds: int, load: Load
) -> dict[str, list[Sample]]:
    """Samples by the case's name, `rounds` each, of interleaved rounds.

    Raises:
        NamespaceError, ProbeError: if the network cannot be made, or a transfer fails.
        UserError: for a case of iperf3 where that is not installed.
    """
    _check_iperf3(cases)
    library = build()
    ends = socket.socketpair()

    def work(hub: Hub, rank: int) -> list[Any]:
        os.environ |= {"NCCL_SOCKET_IFNAME": _INTERFACE}
        channel, other = ends[rank], ends[1 - rank]
        other.close()
        channel.settimeout(_LIMIT_S)
        worker = (_Receiver if rank == 0 else _Sender)(library, channel, load)
        measured = []
        for case in [case for _ in range(rounds) for case in cases]:
            try:
                slow_mbit = slowed_mbit(condition, case.streams or 1)
                measured.append(worker.run(case, slow_mbit, hub.address(0)))
            except (OSError, TimeoutError, RuntimeError, subprocess.SubprocessError) as error:
                raise ProbeError(f"{case.name}, worker {rank}: {error}") from error
        return measured

    try:
        received, sent = run_workers(condition, 2, work).values
    finally:
        for end in ends:
            end.close()
    samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
    for index, (end, start) in enumerate(zip(received, sent, strict=True)):
        sample = Sample(
            mbit=8e-6 * load.num_bytes / (end["at_s"] - start["at_s"]),
            cpu_s_per_gb=1e9 * (end["cpu_s"] + start["cpu_s"]) / load.num_bytes,
            choice=start["choice"],
        )
        samples[cases[index % len(cases)].name].append(sample)
    return samples


def _check_iperf3(cases: Sequence[Case]) -> None:
    name = next((case.name for case in cases if case.is_iperf3), None)
    if name is not None and shutil.which("iperf3") is None:
        raise UserError(
            f"The case {name!r} needs iperf3, which is not in PATH: install it, such as by "
            "apt-get install iperf3, or leave such cases out of cases=."
        )


def path(condition: NetworkCondition) -> LinkCondition:
    """All links from the sender to the receiver, as one, when training begins."""
    return condition.path(sender=1, receiver=0)


def slowed_mbit(condition: NetworkCondition, streams: int) -> float:
    """The rate of the stream that is slowed: a tenth of its share of the path."""
    return _SLOWED_SHARE * (path(condition).rate_mbit or _UNSHAPED_SLOW_MBIT) / streams


class _Worker:
    """One end. `run` returns when the messages began or ended, and the processor time of them."""

    def __init__(self, library: Path, channel: socket.socket, load: Load):
        self.channel = channel
        self.load = load
        self.lines: list[str] = []
        self.plugin = Plugin(library, log=self.lines.append)
        self.data = (ctypes.c_char * load.num_bytes)()
        ctypes.memset(self.data, 1, load.num_bytes)  # its pages are there before anything is timed

    def meet(self) -> None:
        """Wait for the other end."""
        self.channel.sendall(b"+")
        if not self.channel.recv(1):
            raise ConnectionError("the other worker has ended")

    def move(self, post: Callable[[Any], int | None]) -> None:
        """All messages; `post` makes the request of one, or none where it cannot now."""
        under_way: deque[int] = deque()
        pause_s = 0.001 if self.load.in_flight == 1 else 0.0001
        size, total = self.load.message_bytes, self.load.num_bytes
        for offset in range(0, total, size):
            room = (ctypes.c_char * min(size, total - offset)).from_buffer(self.data, offset)
            while len(under_way) == self.load.in_flight or (request := post(room)) is None:
                self.plugin.wait(under_way.popleft(), _LIMIT_S, pause_s)
            under_way.append(request)
        while under_way:
            self.plugin.wait(under_way.popleft(), _LIMIT_S, pause_s)


class _Receiver(_Worker):
    def run(self, case: Case, slow_mbit: float, address: str) -> dict[str, Any]:
        if case.is_iperf3:
            return self._serve_iperf3()
        with _set(case):
            handle, listener = self.plugin.listen()
            self.channel.sendall(handle)
            comm = self.plugin.accept(listener)
            self.meet()
            before_s = time.process_time()
            self.move(lambda room: self.plugin.irecv(comm, room))
            end = {"at_s": time.monotonic(), "cpu_s": time.process_time() - before_s}
            self.meet()
            self.plugin.close("receive", comm)
            self.plugin.close("listen", listener)
        return end

    def _serve_iperf3(self) -> dict[str, Any]:
        server = subprocess.Popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.3)  # iperf3 does not tell when it listens
            self.meet()
            server.wait(_LIMIT_S)
        finally:
            server.kill()
        answer = json.loads(self.channel.recv(_ANSWER_BYTES, socket.MSG_WAITALL))
        return {"at_s": answer["seconds"], "cpu_s": 0.0}


class _Sender(_Worker):
    def run(self, case: Case, slow_mbit: float, address: str) -> dict[str, Any]:
        if case.is_iperf3:
            return self._iperf3(case, address)
        self.lines.clear()  # a choice of an earlier round
        with _set(case):
            before = _open_sockets()
            comm = self.plugin.connect(self.channel.recv(HANDLE_BYTES))
            if case.is_slowed:
                _slow_one(_open_sockets() - before, slow_mbit)
            self.meet()
            before_s = time.process_time()
            start_s = time.monotonic()
            self.move(lambda data: self.plugin.isend(comm, data))
            self.meet()
            cpu_s = time.process_time() - before_s
            self.plugin.close("send", comm)
        chosen = [line.rpartition(": ")[2] for line in self.lines if "streams, " in line]
        choice = chosen[-1] if case.streams is None and chosen else ""
        return {"at_s": start_s, "cpu_s": cpu_s, "choice": choice}

    def _iperf3(self, case: Case, address: str) -> dict[str, Any]:
        self.meet()
        num_bytes = len(self.data)
        words = ["iperf3", "-c", address, "-J", "-P", str(case.streams), "-n", str(num_bytes)]
        finished = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S)
        end = json.loads(finished.stdout)["end"]
        use = end["cpu_utilization_percent"]
        seconds = end["sum_sent"]["seconds"]
        per_byte_s = seconds / end["sum_received"]["bytes"]
        answer = json.dumps({"seconds": per_byte_s * num_bytes})
        self.channel.sendall(answer.ljust(_ANSWER_BYTES).encode())
        cpu_s = (use["host_total"] + use["remote_total"]) / 100 * per_byte_s * num_bytes
        return {"at_s": 0.0, "cpu_s": cpu_s, "choice": ""}


@contextmanager
def _set(case: Case) -> Iterator[None]:
    for name in _VARIABLES:
        os.environ.pop(name, None)
    os.environ |= case.environment()
    yield


def _open_sockets() -> set[int]:
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                found.add(fd)
    return found


def _slow_one(fds: set[int], mbit: float) -> None:
    """Have the kernel pace the first stream."""
    with socket.socket(fileno=os.dup(min(fds))) as stream:
        stream.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, round(mbit * 1e6 / 8))
