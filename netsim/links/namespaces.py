"""A network of workers on one host: a namespace for each worker, and one that is the hub.

    worker 0  eth0 ---- worker0 |
    worker 1  eth0 ---- worker1 | a bridge, or the switch in user space
    worker 2  eth0 ---- worker2 |

The namespaces have no names: they are gone when their processes are, even after SIGKILL, and
nothing of them is ever seen in the host's own. Works as root and, through a user namespace, as
an ordinary user. The caller forks the hub's process, where there is one thread:

    pid = processes.fork(lambda: run_hub(condition))

    def run_hub(condition) -> int:
        pids = Hub(condition, num_workers=4).fork_workers(worker_main)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from host.errors import ChildError
from host.processes import WELL, end_of, fork, kill, run_in_child
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links.unshare import enter_network_namespace

if TYPE_CHECKING:
    from netsim.links.switch import SwitchShaper

MAX_WORKERS = 1023
"""Ports of one Linux bridge."""

_FIRST_ADDRESS = IPv4Address("10.0.0.1")
_PREFIX_LENGTH = 16
_LIMIT_S = 30
_DONE = b"+"
_MAX_WORD_BYTES = 65_536


def address(rank: int) -> str:
    """The IPv4 address of a worker's eth0, in every network."""
    return str(_FIRST_ADDRESS + rank)


def check_permitted(condition: NetworkCondition, num_workers: int = 1) -> None:
    """Make the `Hub` of a run in a child that is thrown away, and as many of its workers as differ.

    `Hub` alone decides what it refuses; this asks it before a run has begun.

    Args:
        condition: of the run.
        num_workers: of the run; 1 tells whether the host permits networks at all.

    Raises:
        ValueError, NamespaceError: as `Hub` and `Hub.fork_workers`.
    """
    import_module("netsim.links.shaper")  # with pyroute2, once for this and all later children

    def attempt() -> None:
        hub = Hub(condition, num_workers)
        num_forked = max(1, min(num_workers, condition.max_rank_named + 1))
        for pid in hub.fork_workers(lambda rank: 0, num_forked):
            if (end := end_of(pid)) != WELL:
                raise NamespaceError(f"a trial worker of the network {end}")

    try:
        run_in_child(attempt, doing="trying the workers' network", limit_s=_LIMIT_S)
    except ChildError as error:
        raise NamespaceError(str(error)) from error


class Hub:
    """The network that joins the workers; this process moves to its namespace.

    Construct it in a freshly forked process that has one thread and serves for nothing else.

    Args:
        condition: of the workers' links.
        num_workers: 1 to `MAX_WORKERS`.

    Raises:
        ValueError: for a number of workers that a bridge has no ports for, or that has not the
            ranks which the condition names.
        NamespaceError: if the host forbids namespaces, or cannot do what the condition asks.
    """

    def __init__(self, condition: NetworkCondition, num_workers: int):
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ValueError(f"num_workers has to be 1 to {MAX_WORKERS}, not {num_workers}.")
        condition.check_num_workers(num_workers)
        from netsim.links import shaper

        self.condition = condition
        self.num_workers = num_workers
        enter_network_namespace()
        self._shaper = shaper.choose(condition, num_workers)

    @property
    def backend(self) -> str:
        """The name of what shapes the links, for the record: one of `condition.BACKENDS`."""
        return self._shaper.name

    @property
    def switch(self) -> "SwitchShaper | None":
        """The switch in user space, where that is the back end."""
        from netsim.links.switch import SwitchShaper

        return self._shaper if isinstance(self._shaper, SwitchShaper) else None

    def start_clock(self, at_s: float = 0.0) -> None:
        """Begin the time of a schedule, trace or faults with `at_s`, or set it to that: training
        starts, or goes on after so many seconds.

        From the hub or any worker, whose copy of this object speaks to the same network.
        """
        self._shaper.start_clock(at_s)

    def address(self, rank: int) -> str:
        """The IPv4 address of a worker's eth0."""
        assert 0 <= rank < self.num_workers, f"no worker has rank {rank}"
        return address(rank)

    def fork_workers(
        self, worker_main: Callable[[int], int], num_forked: int | None = None
    ) -> dict[int, int]:
        """Fork the workers, or the first `num_forked`, join them to the network, and let them run.

        Each child calls `worker_main(rank)` once all links are up, and exits with what it
        returned; an exception prints its traceback and exits with 1. Children die with this
        process, whose to reap they are. If a switch joins them and it dies, `NamespaceError` is
        raised in whatever this process does then.

        Returns:
            rank by pid.

        Raises:
            NamespaceError: if a worker's link cannot be made; none is left running then.
        """
        workers: list[_ForkedWorker] = []
        try:
            for rank in range(self.num_workers if num_forked is None else num_forked):
                workers.append(self._fork_worker(rank, worker_main, workers))
            for worker in workers:
                worker.await_("entered a namespace of its own")
                self._shaper.add_worker(worker.rank, worker.pid)
                worker.proceed()
            for worker in workers:
                worker.await_("brought up its link")
            self._shaper.start()
            for worker in workers:
                worker.proceed()
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
        finally:
            for worker in workers:
                worker.channel.close()
        return {worker.pid: worker.rank for worker in workers}

    def _fork_worker(
        self, rank: int, worker_main: Callable[[int], int], elders: list["_ForkedWorker"]
    ) -> "_ForkedWorker":
        ours, theirs = socket.socketpair()

        def main() -> int:
            for channel in [ours, *(elder.channel for elder in elders)]:
                channel.close()
            with theirs:
                try:
                    enter_network_namespace()
                    _report_and_wait(theirs)
                    self._set_up_worker(rank)
                except NamespaceError as error:
                    return _refuse(theirs, error)
                _report_and_wait(theirs)
            return worker_main(rank)

        with theirs:
            pid = fork(main)
        ours.settimeout(_LIMIT_S)
        return _ForkedWorker(rank=rank, pid=pid, channel=ours)

    def _set_up_worker(self, rank: int) -> None:
        from netsim.links import netlink, tcp

        netlink.bring_up("lo")
        self._shaper.set_up_worker(rank)
        netlink.add_address(netlink.INTERFACE, self.address(rank), prefix_length=_PREFIX_LENGTH)
        netlink.bring_up(netlink.INTERFACE)
        others = [other for other in range(self.num_workers) if other != rank]
        netlink.know_neighbours(
            netlink.INTERFACE,
            {self.address(other): netlink.mac_address(other) for other in others},
        )
        tcp.apply(self.condition)


@dataclass(kw_only=True)
class _ForkedWorker:
    """A forked worker as the hub sees it until it runs."""

    rank: int
    pid: int
    channel: socket.socket
    is_reaped: bool = False

    def await_(self, deed: str) -> None:
        try:
            word = self.channel.recv(_MAX_WORD_BYTES)
        except ConnectionError:
            word = b""
        except TimeoutError:
            raise NamespaceError(
                f"Worker {self.rank} has not {deed} within {_LIMIT_S} s: is the host overloaded?"
            ) from None
        if not word:
            self.is_reaped = True
            raise NamespaceError(f"worker {self.rank} {end_of(self.pid)} before it had {deed}")
        if word != _DONE:
            raise NamespaceError(word.decode())

    def proceed(self) -> None:
        with suppress(BrokenPipeError):  # the next wait, or the exit code, tells of its death
            self.channel.send(_DONE)

    def kill(self) -> None:
        if not self.is_reaped:
            kill(self.pid)


def _report_and_wait(channel: socket.socket) -> None:
    """Tell the hub, and wait for its word. A hub that is gone ends this process without a word,
    before the kernel does: what that hub has left undone would fail here.
    """
    word = b""
    with suppress(ConnectionError):
        channel.send(_DONE)
        word = channel.recv(1)  # without a limit: the hub has one
    if not word:
        os._exit(1)


def _refuse(channel: socket.socket, error: NamespaceError) -> int:
    """Tell the hub why there is no link; returns the exit code."""
    with suppress(ConnectionError):
        channel.send(str(error).encode())
    return 1
