"""What the tests do in real namespaces: `python scenarios.py NAME [ARGUMENT]` prints JSON.

A process of its own, because pytest's may have threads (torch starts some), which fork dislikes.
"""

import ctypes
import encodings.idna  # noqa: F401  (for `ordinary_user`, who may not be able to read it)
import json
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from pyroute2 import IPRoute

from netsim import counters, links, netem, probe, processes, proof, shaper, tcp  # noqa: F401
from netsim.condition import NetworkCondition
from netsim.errors import ProbeError
from netsim.link import LinkCondition
from netsim.namespaces import Hub, NamespaceError, check_permitted
from netsim.processes import fork
from netsim.trial import run_workers

SLOW = NetworkCondition(rate_mbit=100, queue_ms=200)
NUM_BYTES = 1_000_000
NOBODY = 65534


def permitted() -> str | None:
    try:
        check_permitted(SLOW)
    except NamespaceError as error:
        return str(error)
    return None


def delay() -> dict:
    """Whether the kernel has netem, and what it says of a condition that insists on it."""
    asked = NetworkCondition(rate_mbit=100, delay_ms=5, loss_pct=0.5, backend="netem")
    has_netem = processes.run_in_child(lambda: "yes" if kernel_has_netem() else "") == "yes"
    try:
        check_permitted(asked)
    except NamespaceError as error:
        return {"has_netem": has_netem, "error": str(error)}
    return {"has_netem": has_netem, "error": None}


def kernel_has_netem() -> bool:
    processes.enter_network_namespace()
    return links.has_qdisc(netem.qdisc(LinkCondition(delay_ms=1)))


def backends() -> dict:
    """Which back end serves which condition."""
    conditions = {
        "rate": NetworkCondition(rate_mbit=100),
        "forced": NetworkCondition(rate_mbit=100, backend="switch"),
        "delay": NetworkCondition(delay_ms=5),
        "trace": NetworkCondition(trace="cellular.csv"),
        "nodes": NetworkCondition(nodes={"size": 2, "between": {"rate_mbit": 10}}),
    }
    return {name: run_workers(c, 3, lambda hub, rank: 0).backend for name, c in conditions.items()}


def switched() -> dict:
    """`LinkReport`s of three workers with a delay, their TCP, and the switch's counters."""
    asked = NetworkCondition(rate_mbit=20, delay_ms=10, backend="switch")

    def work(hub: Hub, rank: int) -> list:
        report = proof.measure(asked, rank, [hub.address(r) for r in range(3)])
        assert report is not None
        return [asdict(report), asdict(tcp.read())]

    results = run_workers(asked, 3, work, switch_counters)
    return {"workers": results.values, "counters": results.hub}


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


def outage() -> list:
    """Round trips in s of single bytes over a link that goes down 0.3 s after the clock starts."""
    fault = {"worker": 1, "at_s": 0.3, "for_s": 1.0}

    def work(hub: Hub, rank: int) -> list:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind((hub.address(rank), 5000))
            datagrams.settimeout(4)
            if rank == 1:
                while datagrams.recvfrom(16)[0] != b"end":
                    datagrams.sendto(b"!", (hub.address(0), 5000))
                return []
            datagrams.settimeout(0.05)
            hub.start_clock()
            begin, answered = time.monotonic(), []
            while (now := time.monotonic() - begin) < 1.8:
                datagrams.sendto(b"?", (hub.address(1), 5000))
                with suppress(TimeoutError):
                    datagrams.recv(16)
                    answered.append(now)
                time.sleep(0.01)
            for _ in range(5):
                datagrams.sendto(b"end", (hub.address(1), 5000))
            return answered

    return run_workers(NetworkCondition(faults=[fault]), 2, work).values[0]


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


def random_kills(num_cycles: int = 8) -> list:
    """Holdings before and after networks of which a process, drawn at random, is killed."""
    pr_set_child_subreaper = 36  # whoever of a network is left over becomes a child of this process
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    chosen = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        before = holdings() | {"files": os.listdir(folder)}
        for _ in range(num_cycles):
            kill_one(chosen)
        return [before, holdings() | {"files": os.listdir(folder)}]


def kill_one(chosen: random.Random) -> None:
    """Make a network and kill one of its processes; returns when the last is gone."""
    reader, writer = os.pipe()
    launcher = fork(lambda: hold_network(writer))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pids = [launcher, *json.loads(pipe.readline())]
        assert len(namespaces()) == 4, "this process's, the hub's, and two workers'"
        os.kill(chosen.choice(pids), signal.SIGKILL)
        assert not pipe.read(), "the end of the pipe is the end of all that hold it"
    deadline = time.monotonic() + 5
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                assert time.monotonic() < deadline, descendants(os.getpid())
                time.sleep(0.002)


def namespaces() -> list[str]:
    """Network namespaces that this process or a descendant is in or has open: those that live."""
    found = set()
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with suppress(OSError):  # it has ended
            names = ["ns/net", *(f"fd/{number}" for number in os.listdir(f"/proc/{pid}/fd"))]
            for name in names:
                with suppress(OSError):  # the descriptor that listed them
                    found.add(os.readlink(f"/proc/{pid}/{name}"))
    return sorted(link for link in found if link.startswith("net:"))


def descendants(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
        return children + [pid for child in children for pid in descendants(child)]
    return []


def many_random_kills() -> list:
    return random_kills(200)


def hold_network(writer: int) -> int:
    """The launcher: its hub, switch and workers live until one of them is killed."""

    def run_hub() -> int:
        hub = Hub(NetworkCondition(rate_mbit=100, backend="switch"), 2)
        pids = hub.fork_workers(lambda rank: time.sleep(60) or 0)
        assert hub.switch is not None
        os.write(writer, json.dumps([os.getpid(), hub.switch.pid, *pids]).encode() + b"\n")
        with suppress(NamespaceError):
            os.wait()
        return 1

    os.waitpid(fork(run_hub), 0)
    return 1


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
    giant_header = struct.pack("=BBHHHH", 1, 1, 60000, 1, 34, 16)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
        raw.bind(("eth0", 0))
        for length in (14, 60, 1500, 30000, 65000):
            with suppress(OSError):
                raw.send(giant_header + other + own + b"\x08\x00" + chosen.randbytes(length))


def reach(hub: Hub, rank: int, num_workers: int) -> bool:
    """Whether a byte gets from each worker to the next."""
    with socket.create_server((hub.address(rank), 5000)) as server:
        server.settimeout(10)
        deadline = time.monotonic() + 10
        while True:
            try:
                next_address = hub.address((rank + 1) % num_workers), 5000
                outgoing = socket.create_connection(next_address, timeout=10)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
        incoming, _ = server.accept()
    with outgoing, incoming:
        outgoing.send(b"+")
        arrived = incoming.recv(1) == b"+"
        incoming.send(b"+")  # who exits earlier takes the link, and what it still holds, away
        return arrived and outgoing.recv(1) == b"+"


def switch_counters(hub: Hub) -> dict:
    assert hub.switch is not None
    return asdict(hub.switch.counters())


def traffic() -> list:
    """Worker 0 sends `NUM_BYTES` to worker 1, of 3; each reports what it saw."""

    def work(hub: Hub, rank: int) -> dict:
        before = counters.bytes_sent(), counters.bytes_received()
        algorithm = [send, receive, lambda hub: None][rank](hub)
        return {
            "sent": counters.bytes_sent() - before[0],
            "received": counters.bytes_received() - before[1],
            "interfaces": interfaces(),
            "socket_algorithm": algorithm,
            "route_algorithm": links.congestion_control("eth0"),
            "qdisc": read_qdisc("eth0"),
        }

    return run(SLOW, 3, work)


def hub_qdisc() -> dict:
    """The discipline on the hub's end of the link, as the kernel tells it."""
    return run(SLOW, 1, lambda hub, rank: None, in_hub=lambda: read_qdisc("worker0"))[-1]


def proofs() -> list:
    """`LinkReport`s of four workers, measured three times."""

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        reports = [proof.measure(SLOW, rank, addresses) for _ in range(3)]
        return [asdict(report) for report in reports if report is not None]

    return run(SLOW, 4, work)


def silent_neighbour() -> list:
    """What the probes of workers 1 and 2 say when worker 0 does not take part."""
    probe.LIMIT_S = 1

    def work(hub: Hub, rank: int) -> str | None:
        if rank == 0:
            time.sleep(4)
            return None
        try:
            proof.measure(SLOW, rank, [hub.address(rank) for rank in range(3)])
        except ProbeError as error:
            return str(error)

    return run(SLOW, 3, work)


def failure() -> int:
    """The exit status of a hub whose worker 1 raises."""

    def work(hub: Hub, rank: int) -> None:
        assert rank != 1, "worker 1 fails on purpose"

    return run(SLOW, 2, work)[-1]


def cycles() -> list:
    """File descriptors, children and links of the host before and after ten networks."""
    before = holdings()
    for _ in range(10):
        run(SLOW, 2, lambda hub, rank: None)
    check_permitted(SLOW)
    return [before, holdings()]


def ordinary_user() -> dict:
    """`traffic` as a user without rights, or why the host forbids it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        pr_set_dumpable = 4  # else /proc/self still belongs to root
        ctypes.CDLL(None).prctl(pr_set_dumpable, 1, 0, 0, 0)
    error = permitted()
    return {"uid": os.geteuid(), "error": error, "traffic": None if error else traffic()}


def wait_to_be_killed() -> None:
    """Print the pids of launcher, hub and workers, and keep them all alive."""

    def run_hub() -> int:
        pids = Hub(SLOW, 3).fork_workers(lambda rank: time.sleep(60) or 0)
        print(json.dumps([os.getppid(), os.getpid(), *pids]), flush=True)
        return os.waitpid(next(iter(pids)), 0)[1]

    os.waitpid(fork(run_hub), 0)


def run(
    condition: NetworkCondition,
    num_workers: int,
    work: Callable[[Hub, int], object],
    in_hub: Callable[[], object] = lambda: None,
) -> list:
    """Results of `work` by rank, then that of `in_hub` or, if a process failed, its exit code."""
    reader, writer = os.pipe()

    def run_hub() -> int:
        hub = Hub(condition, num_workers)

        def worker_main(rank: int) -> int:
            report(writer, rank, work(hub, rank))
            return 0

        pids = hub.fork_workers(worker_main)
        report(writer, num_workers, in_hub())
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)

    hub_pid = fork(run_hub)
    os.close(writer)
    with os.fdopen(reader) as lines:
        results = dict(json.loads(line) for line in lines)
    code = os.waitstatus_to_exitcode(os.waitpid(hub_pid, 0)[1])
    if code:
        results[num_workers] = code
    return [results.get(rank) for rank in range(num_workers + 1)]


def report(writer: int, rank: int, result: object) -> None:
    os.write(writer, json.dumps([rank, result]).encode() + b"\n")


def send(hub: Hub) -> str:
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((hub.address(1), 5000), timeout=10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
    with connection:
        connection.sendall(bytes(NUM_BYTES))
        connection.recv(1)  # who exits earlier takes the link, and what it still holds, away
        return algorithm_of(connection)


def receive(hub: Hub) -> str:
    with socket.create_server((hub.address(1), 5000)) as server:
        server.settimeout(10)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(10)
        missing = NUM_BYTES
        while missing:
            received = len(connection.recv(missing))
            assert received
            missing -= received
        connection.send(b"+")
        return algorithm_of(connection)


def algorithm_of(connection: socket.socket) -> str:
    value = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return value.split(b"\0")[0].decode()


def read_qdisc(interface: str) -> dict:
    with IPRoute() as ip:
        [index] = ip.link_lookup(ifname=interface)
        [qdisc] = ip.get_qdiscs(index=index)
    parameters = qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
    ticks_per_s = 1e9 / 64
    return {
        "kind": qdisc.get_attr("TCA_KIND"),
        "rate": parameters["rate"],
        "limit": parameters["limit"],
        "burst": parameters["buffer"] / ticks_per_s * parameters["rate"],
    }


def interfaces() -> list[str]:
    with open("/proc/net/dev") as table:
        return sorted(line.split(":")[0].strip() for line in table if ":" in line)


def holdings() -> dict:
    try:
        os.waitpid(-1, os.WNOHANG)
        has_children = True
    except ChildProcessError:
        has_children = False
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "has_children": has_children,
        "namespaces": namespaces(),
        "interfaces": interfaces(),
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
