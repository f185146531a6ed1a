"""Runs someone else's program in every worker's namespace: one process a worker."""

import os
import socket
import sys
from collections.abc import Callable

from host.processes import fork
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.links.namespaces import Hub
from netsim.links.netlink import INTERFACE
from netsim.links.unshare import run_in_pid_namespace
from netsim.proof import proof
from netsim.torchrun import PORT, of_one_node, without_meeting

_NOT_FOUND = 127


def serve(condition: NetworkCondition, num_workers: int, command: list[str]) -> int:
    """Prove the network, then run the command once per worker; returns the exit code.

    Each has RANK, WORLD_SIZE, LOCAL_RANK=0, MASTER_ADDR and MASTER_PORT in its environment, and
    the interface for gloo and NCCL. Where the command is torchrun, each worker starts one
    torchrun, a node of one process: see `netsim.torchrun`. The time of the condition begins when
    the commands do. The first that fails ends the others.

    To be called in a freshly forked process, which becomes the hub.

    Raises:
        NamespaceError, ProbeError, ValueError: if the network cannot be made, or is not what was
            asked for.
    """
    proof.round_trip_s(condition, num_workers)
    hub = Hub(condition, num_workers)
    addresses = [hub.address(rank) for rank in range(num_workers)]
    of_one_node(command, 0, addresses)
    ours, theirs = socket.socketpair()

    def work(rank: int) -> int:
        ours.close()
        try:
            proof.check(condition, [proof.probe(condition, rank, addresses)])
        except ProbeError as error:
            theirs.send(str(error).encode() + b"\n")
            return 2
        theirs.send(b"\n")
        theirs.close()
        try:
            return run_in_pid_namespace(
                lambda: _run_below(lambda: _execute(rank, addresses, command))
            )
        except NamespaceError as error:
            print(f"netsim: {error}", file=sys.stderr)
            return 2

    ranks = hub.fork_workers(work)
    theirs.close()
    with ours:
        _await_proof(ours, num_workers)
    hub.start_clock()
    while ranks:
        pid, status = os.wait()
        rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
        if code:
            print(f"netsim: worker {rank} ended with exit code {code}", file=sys.stderr)
            return code if code > 0 else 128 - code
    return 0


def environment(rank: int, addresses: list[str]) -> dict[str, str]:
    """What a worker's command finds in its environment besides the caller's own."""
    return {
        "RELAXLAB_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(addresses)),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }


def _await_proof(channel: socket.socket, num_workers: int) -> None:
    words = b""
    while words.count(b"\n") < num_workers and (word := channel.recv(4096)):
        words += word
    errors = [line.decode() for line in words.splitlines() if line]
    if errors:
        raise ProbeError(errors[0])
    if words.count(b"\n") < num_workers:
        raise ProbeError("A worker died while it measured its link; what it printed says why.")


def _run_below(main: Callable[[], int]) -> int:
    """What `main` returns in a child of this process, the first of a PID namespace: no signal that
    the first one sends itself, SIGKILL included, would end it. Orphans are reaped meanwhile.
    """
    child_pid = fork(main)
    while True:
        pid, status = os.wait()
        if pid == child_pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _execute(rank: int, addresses: list[str], command: list[str]) -> int:
    arguments = of_one_node(command, rank, addresses)
    own = without_meeting(os.environ) | environment(rank, addresses)
    try:
        os.execvpe(arguments[0], arguments, own)
    except OSError as error:
        print(f"netsim: cannot run {arguments[0]}: {error.strerror}", file=sys.stderr)
    return _NOT_FOUND
