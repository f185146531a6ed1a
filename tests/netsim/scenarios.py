"""What the tests do in real namespaces: `python scenarios.py NAME [ARGUMENT]` prints JSON.

A process of its own, because pytest's may have threads (torch starts some), which fork dislikes.
"""

import ctypes
import encodings.idna  # noqa: F401  (for `ordinary_user`, who may not be able to read it)
import json
import os
import socket
import sys
import time
from collections.abc import Callable

from pyroute2 import IPRoute

from netsim import counters, links, netem, probe
from netsim.condition import NetworkCondition
from netsim.errors import ProbeError
from netsim.namespaces import Hub, NamespaceError, check_permitted
from netsim.processes import fork

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
    """Whether the kernel has netem, and what it says of a condition that needs it."""
    try:
        check_permitted(NetworkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=0.5))
    except NamespaceError as error:
        return {"has_netem": netem.has_qdisc("netem"), "error": str(error)}
    return {"has_netem": netem.has_qdisc("netem"), "error": None}


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


def rates() -> list:
    """The achieved rate of each of four workers, measured three times."""

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        return [probe.achieved_rate_mbit(rank, addresses) for _ in range(3)]

    return run(SLOW, 4, work)


def silent_neighbour() -> list:
    """What the probes of workers 1 and 2 say when worker 0 does not take part."""
    probe._LIMIT_S = 1  # pyright: ignore[reportPrivateUsage]

    def work(hub: Hub, rank: int) -> str | None:
        if rank == 0:
            time.sleep(4)
            return None
        try:
            probe.achieved_rate_mbit(rank, [hub.address(rank) for rank in range(3)])
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
        "interfaces": interfaces(),
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
