"""What shapes the links, and what traffic over them sees of it."""

import ctypes
import encodings.idna  # noqa: F401  (for `ordinary_user`, who may not be able to read it)
import mmap  # noqa: F401  (for `ordinary_user`, too)
import multiprocessing
import os
import socket
import time
from contextlib import suppress

from pyroute2 import IPRoute

from host.processes import run_in_child
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.errors import NamespaceError
from netsim.links import counters, netem, netlink
from netsim.links.namespaces import Hub, check_permitted
from netsim.links.unshare import enter_network_namespace
from netsim.proof.temporary_network import run_workers
from tests.netsim.scenarios.networks import SLOW, interfaces, run

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
    has_netem = run_in_child(kernel_has_netem, doing="looking for netem")
    try:
        check_permitted(asked)
    except NamespaceError as error:
        return {"has_netem": has_netem, "error": str(error)}
    return {"has_netem": has_netem, "error": None}


def kernel_has_netem() -> bool:
    enter_network_namespace()
    return netlink.has_qdisc(netem.qdisc(LinkCondition(delay_ms=1)))


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


def everyone_speaks_to_everyone() -> list:
    """How many of the 39 others each of 40 workers has heard, by one datagram of each."""
    num_workers = 40
    everyone = multiprocessing.get_context("fork").Barrier(num_workers)

    def work(hub: Hub, rank: int) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind((hub.address(rank), 5000))
            datagrams.settimeout(60)
            everyone.wait(timeout=60)
            others = [r for r in range(num_workers) if r != rank]
            for other in others:
                datagrams.sendto(b"!", (hub.address(other), 5000))
            heard = set()
            with suppress(TimeoutError):
                while len(heard) < len(others):
                    heard.add(datagrams.recvfrom(16)[1][0])
            everyone.wait(timeout=120)  # who exits earlier takes its link, and what it holds, away
            return len(heard)

    return run_workers(NetworkCondition(), num_workers, work).values


def hub_qdisc() -> dict:
    """The discipline on the hub's end of the link, as the kernel tells it."""
    return run(SLOW, 1, lambda hub, rank: None, in_hub=lambda: read_qdisc("worker0"))[-1]


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
            "route_algorithm": netlink.congestion_control("eth0"),
            "qdisc": read_qdisc("eth0"),
        }

    return run(SLOW, 3, work)


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


def send(hub: Hub) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection((hub.address(1), 5000), timeout=60)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
    with connection:
        connection.sendall(bytes(NUM_BYTES))
        connection.recv(1)  # who exits earlier takes the link, and what it still holds, away
        return algorithm_of(connection)


def receive(hub: Hub) -> str:
    with socket.create_server((hub.address(1), 5000)) as server:
        server.settimeout(60)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(60)
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
