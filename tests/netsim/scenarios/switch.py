"""The switch in user space: what it does with traffic, garbage and outages, and its own death."""

import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from types import MappingProxyType

from host.processes import WELL, end_of, fork, run_in_child
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links import netlink, tcp
from netsim.links.namespaces import Hub
from netsim.links.port import Port
from netsim.links.unshare import enter_network_namespace
from netsim.links.wire import VNET_HEADER
from netsim.proof import proof
from netsim.proof.temporary_network import run_workers
from tests.netsim.scenarios.backends import read_qdisc

_NUMBERED = b"\xff" * 6 + bytes(6) + b"\x12\x34"
"""How a frame begins whose number follows."""


def _number(frame: bytes) -> int:
    return int.from_bytes(frame[len(_NUMBERED) :][:8], "big")


def switched() -> dict:
    """`LinkReport`s of three workers with a delay, their TCP, what connections take ahead once 8 of
    them share it, and the switch's counters.
    """
    asked = NetworkCondition(
        rate_mbit=60,
        delay_ms=10,
        tcp_slow_start_after_idle=False,
        tcp_wmem_max_kb=64,
        tcp_rmem_max_kb=200,
        backend="switch",
    )

    def work(hub: Hub, rank: int) -> list:
        report = proof.probe(asked, rank, [hub.address(r) for r in range(3)])
        assert report is not None
        settings = tcp.read()
        tcp.share_unsent(8)
        return [asdict(report), asdict(settings), tcp.read().unsent_bytes]

    results = run_workers(asked, 3, work, switch_counters)
    return {"workers": results.values, "counters": results.hub}


def jumbo() -> dict:
    """The workers' `LinkReport`s of three attempts and TCP by back end, where a frame carries six
    times as much: the switch with loss, and bridges of nodes.
    """
    asked = {
        "switch": NetworkCondition(rate_mbit=50, loss_pct=5, mtu=9000, backend="switch"),
        "bridges": NetworkCondition(rate_mbit=50, mtu=9000, nodes={"size": 2}),
    }

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(r) for r in range(3)]
        reports = [proof.probe(hub.condition, rank, addresses) for _ in range(3)]
        return [[asdict(report) for report in reports if report], asdict(tcp.read())]

    return {name: run_workers(condition, 3, work).values for name, condition in asked.items()}


def long_queue() -> dict:
    """Whether workers reach each other over links whose queue holds 5 GB, and what the discipline
    of each one's own interface holds.
    """
    asked = NetworkCondition(rate_mbit=10_000, queue_ms=4000, backend="switch")

    def work(hub: Hub, rank: int) -> list:
        return [reach(hub, rank, 3), read_qdisc("eth0")["limit"]]

    reached, limits = zip(*run_workers(asked, 3, work).values, strict=True)
    return {"reached": reached, "limits": limits}


def two_nodes() -> list:
    """Whether workers of two nodes, joined by bridges and a slow link, reach each other."""
    asked = NetworkCondition(rate_mbit=100, nodes={"size": 2, "between": {"rate_mbit": 10}})
    return run_workers(asked, 3, lambda hub, rank: reach(hub, rank, 3)).values


def fuzzed() -> dict:
    """Worker 1 sends garbage; afterwards 0 and 2 still reach each other through the switch."""

    def work(hub: Hub, rank: int) -> bool:
        if rank == 1:
            send_garbage()
        return reach(hub, rank, 3)

    results = run_workers(NetworkCondition(backend="switch"), 3, work, switch_counters)
    return {"reached": results.values, "counters": results.hub}


def flooded_port() -> dict[str, int]:
    """What a port of 15 slots does with 400,000 numbered frames, more than its reader can take,
    that come from another processor, where there is one.
    """

    def flood() -> int:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
            raw.bind(("eth0", 0))
            for number in range(400_000):
                with suppress(OSError):
                    raw.send(_NUMBERED + number.to_bytes(8, "big") + bytes(38))
        return 0

    def read() -> dict[str, int]:
        enter_network_namespace()
        netlink.add_veth("port", mtu=1500, peer="eth0")
        netlink.bring_up("port")
        netlink.bring_up("eth0")
        port = Port("port", num_blocks=1)
        sender = fork(flood)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ended = os.pidfd_open(sender)
        numbers: list[int] = []
        while not (port.was_emptied and select.select([ended], [], [], 0)[0]):
            frames = (packet[VNET_HEADER.size :] for _, packet in port.packets())
            numbers += [_number(frame) for frame in frames if frame.startswith(_NUMBERED)]
            time.sleep(1e-5)  # so that the ring is full, which a fast reader would empty
        assert end_of(sender) == WELL
        return {
            "num_read": len(numbers),
            "num_unread": port.num_unread(),
            "num_after_later_ones": sum(b < a for a, b in pairwise(numbers)),
        }

    return run_in_child(read, doing="reading a port", limit_s=200)


def outage(begins_s: float = 0.0, sets: Mapping[float, float] = MappingProxyType({})) -> list:
    """Round trips in s of single bytes over a link that goes down 0.3 s after the clock starts,
    with `begins_s`. The clock is set to the values of `sets` after so many seconds.
    """
    later = sorted(sets.items())
    fault = {"worker": 1, "at_s": begins_s + 0.3, "for_s": 1.0}

    def work(hub: Hub, rank: int) -> list:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind((hub.address(rank), 5000))
            datagrams.settimeout(60)
            if rank == 1:
                while datagrams.recvfrom(16)[0] != b"end":
                    datagrams.sendto(b"!", (hub.address(0), 5000))
                return []
            datagrams.settimeout(0.05)
            hub.start_clock(begins_s)
            begin, answered = time.monotonic(), []
            while (now := time.monotonic() - begin) < 1.8:
                if later and now >= later[0][0]:
                    hub.start_clock(later.pop(0)[1])
                datagrams.sendto(b"?", (hub.address(1), 5000))
                with suppress(TimeoutError):
                    datagrams.recv(16)
                    answered.append(now)
                time.sleep(0.01)
            for _ in range(5):
                datagrams.sendto(b"end", (hub.address(1), 5000))
            return answered

    return run_workers(NetworkCondition(faults=[fault]), 2, work).values[0]


def later_outage() -> list:
    """The same where the time of training is 1,000 s already."""
    return outage(1000.0)


def outage_put_off() -> list:
    """The same where the clock is set back before it, and beyond its end amid it."""
    return outage(0.0, {0.25: 0.0, 0.5: 0.05, 1.2: 5.0})


def dead_switch() -> str:
    """What the hub raises when someone kills the switch."""

    def run_hub() -> int:
        hub = Hub(NetworkCondition(backend="switch"), 2)
        pids = hub.fork_workers(lambda rank: time.sleep(30) or 0)
        assert hub.switch is not None
        os.kill(hub.switch.pid, signal.SIGKILL)
        try:
            os.waitpid(next(iter(pids)), 0)
        except NamespaceError as error:
            os.write(writer, str(error).encode())
        return 0

    reader, writer = os.pipe()
    hub_pid = fork(run_hub)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(hub_pid, 0)
    return said


def send_garbage() -> None:
    """Truncated, giant and foreign frames, and a storm of ARP."""
    chosen = random.Random(1)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind(("eth0", 0))
        own, other = (bytes.fromhex(f"02000a0000{rank:02x}") for rank in (1, 2))
        for _ in range(300):
            target = chosen.choice([other, own, b"\xff" * 6, chosen.randbytes(6)])
            ether_type = chosen.choice([b"\x08\x06", b"\x08\x00", b"\x86\xdd", b"\x12\x34"])
            length = chosen.choice([0, 1, 20, 46, 1500])
            with suppress(OSError):  # a frame that the kernel refuses does not reach the switch
                raw.send(target + own + ether_type + chosen.randbytes(length))
        for _ in range(2000):
            raw.send(b"\xff" * 6 + own + b"\x08\x06" + bytes(28))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
        raw.bind(("eth0", 0))
        for segment_bytes in (1, 7, 1448):  # a frame of one byte each: nobody's, but allowed
            for length in (60, 1500, 30000, 65000):
                virtio = struct.pack("=BBHHHH", 1, 1, 54, segment_bytes, 34, 16)
                raw.send(virtio + other + own + b"\x08\x00" + _tcp_packet(length))


def _tcp_packet(num_bytes: int) -> bytes:
    """Of a connection that nobody has: the kernel takes it, and its segments are all for it."""
    addresses = bytes([10, 0, 0, 2, 10, 0, 0, 3])
    ip = struct.pack("!BBHHHBBH8s", 0x45, 0, num_bytes, 1, 0, 64, 6, 0, addresses)
    tcp = struct.pack("!HHIIBBHHH", 1234, 5000, 1, 1, 5 << 4, 16, 1000, 0, 0)
    return (ip + tcp).ljust(num_bytes, b"!")[:num_bytes]


def switch_counters(hub: Hub) -> dict:
    assert hub.switch is not None
    return asdict(hub.switch.counters())


def reach(hub: Hub, rank: int, num_workers: int) -> bool:
    """Whether a byte gets from each worker to the next."""
    with socket.create_server((hub.address(rank), 5000)) as server:
        server.settimeout(60)
        deadline = time.monotonic() + 60
        while True:
            try:
                next_address = hub.address((rank + 1) % num_workers), 5000
                outgoing = socket.create_connection(next_address, timeout=60)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        incoming, _ = server.accept()
    with outgoing, incoming:
        outgoing.send(b"+")
        arrived = incoming.recv(1) == b"+"
        incoming.send(b"+")  # who exits earlier takes the link, and what it still holds, away
        return arrived and outgoing.recv(1) == b"+"
