"""Real workers on this host: one process each, forked from one that has imported torch once.

    launcher  --fork-->  hub (owns the bridge)  --fork-->  worker 0, worker 1, ...

Each dies with its parent, by the kernel's hand, so a run leaves nothing behind however it ends.
Workers speak to the launcher over socket pairs, off the network under test.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from experiments.plan.plan import Plan
from experiments.real.failures import RunFailedError
from experiments.real.worker import (
    PROBE,
    TRAIN,
    Diverged,
    Failed,
    Finished,
    Probed,
    Stopped,
    run_worker,
)
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow
from experiments.training.result import DivergedError, Result
from host.channel import ParentChannel
from host.memory import ADVICE, num_oom_kills
from host.processes import fork
from netsim.errors import NamespaceError, ProbeError
from netsim.links.namespaces import Hub
from netsim.links.tcp import TcpSettings
from netsim.proof import proof
from netsim.proof.proof import LinkReport

NUM_PROBES = 5
START_LIMIT_S = 60
GRACE_S = 3.0
"""How long a first sign of failure waits for others: the cause is often not the first seen."""

END_LIMIT_S = 5


@dataclass(frozen=True)
class HubReady:
    """The hub's word that the network is there, and what shapes its links."""

    net_backend: str


@dataclass(frozen=True)
class ShapedNetwork:
    """The network of a run: what shapes it, its links (none for one worker), the workers' TCP."""

    backend: str
    links: list[LinkReport]
    tcp: TcpSettings

    def __str__(self) -> str:
        """Such as "network by tbf, 4 links: asked 100 Mbit/s, RTT 0 ms; achieved 99.7 to 99.9
        Mbit/s, RTT 0.1 to 0.2 ms".
        """
        asked = self.links[0]
        limit = asked.asked_rate_mbit
        rate = "no limit" if limit is None else f"{limit:g} Mbit/s"
        rates = [link.achieved_rate_mbit for link in self.links]
        rtts = [link.achieved_rtt_ms for link in self.links]
        return (
            f"network by {self.backend}, {len(self.links)} links: "
            f"asked {rate}, RTT {asked.asked_rtt_ms:g} ms; "
            f"achieved {min(rates):.1f} to {max(rates):.1f} Mbit/s, "
            f"RTT {min(rtts):.1f} to {max(rtts):.1f} ms"
        )


@dataclass(frozen=True)
class Exited:
    """The hub's word about a worker: its exit code, minus the signal that killed it."""

    rank: int
    code: int


def launch(
    plan: Plan,
    data: TaskData,
    on_network: Callable[[ShapedNetwork], None],
    on_row: Callable[[MetricsRow], None],
) -> list[Result]:
    """Run `plan` on real workers behind shaped links; returns their results by rank.

    Args:
        plan: the run.
        data: all examples.
        on_network: is given what the network turned out to be, before training.
        on_row: is given every row of metrics.

    Raises:
        RunFailedError: the network is not what was asked for, or a worker has died or failed.
        DivergedError: the loss is not finite.
        UserError: a worker was stopped, such as by a full disk.
    """
    workers = [Pipe() for _ in range(plan.workers)]
    hub_ours, hub_theirs = Pipe()
    # Files without a name, which nobody has to remove: over one workers find each other.
    rendezvous = os.memfd_create("relaxlab-rendezvous")
    memory = os.memfd_create("relaxlab-evaluations")

    def run_hub() -> int:
        # Ctrl-C reaches all processes of a terminal; the launcher alone answers, and ends the rest.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for channel in (hub_ours, *(ours for ours, _ in workers)):
            channel.close()
        return _run_hub(plan, data, f"/proc/self/fd/{rendezvous}", memory, workers, hub_theirs)

    hub_pid = fork(run_hub)
    for channel in (hub_theirs, *(theirs for _, theirs in workers)):
        channel.close()
    supervisor = _Supervisor(plan, [ours for ours, _ in workers], hub_ours)
    try:
        on_network(supervisor.await_network())
        return supervisor.await_results(on_row)
    finally:
        os.close(rendezvous)
        os.close(memory)
        supervisor.end(hub_pid)


class _Supervisor:
    """The launcher's view of its workers."""

    def __init__(self, plan: Plan, workers: list[Connection], hub: Connection) -> None:
        self._plan = plan
        self._workers = workers
        self._open: dict[Connection, int | None] = {c: r for r, c in enumerate(workers)}
        self._open[hub] = None
        self._probed: dict[int, Probed] = {}
        self._net_backend = ""
        self._results: dict[int, Result] = {}
        self._failures: list[Failed] = []
        self._heard_of: set[int] = set()
        self._num_oom_kills = num_oom_kills()
        self._on_row: Callable[[MetricsRow], None] = lambda row: None

    def await_network(self) -> ShapedNetwork:
        """Have the workers probe their links until these are what was asked for.

        A busy host can disturb a probe, or have a connection of it break off, and nothing makes a
        link look better than it is: so a network is refused only after `NUM_PROBES`.
        """
        refusal = ""
        for _ in range(NUM_PROBES):
            self._probed.clear()
            self._heard_of.clear()
            self._say(PROBE)
            self._await(self._probed, START_LIMIT_S, "probed its link")
            refusal = next((p.broken for p in self._probed.values() if p.broken), "")
            if refusal:
                continue
            links = [p.link for _, p in sorted(self._probed.items()) if p.link is not None]
            try:
                proof.check(self._plan.net, links)
                return ShapedNetwork(self._net_backend, links, self._probed[0].tcp)
            except ProbeError as error:
                refusal = str(error)
        raise RunFailedError(refusal)

    def await_results(self, on_row: Callable[[MetricsRow], None]) -> list[Result]:
        """Let the workers train and wait for their results."""
        self._on_row = on_row
        self._say(TRAIN)
        # Collectives have the limit timeout_s; a long evaluation needs room above it.
        self._await(self._results, START_LIMIT_S + 10 * self._plan.cluster.timeout_s, "finished")
        return [self._results[rank] for rank in range(self._plan.workers)]

    def end(self, hub_pid: int) -> None:
        """Let workers that are done exit; kill the rest. When it returns, no process is left."""
        if len(self._results) == self._plan.workers:
            self._drain(time.monotonic() + END_LIMIT_S)
        with suppress(ProcessLookupError):
            os.kill(hub_pid, signal.SIGKILL)  # its workers die with it
        os.waitpid(hub_pid, 0)
        self._drain(time.monotonic() + END_LIMIT_S)
        for channel in self._workers:
            channel.close()

    def _say(self, word: str) -> None:
        for channel in self._workers:
            with suppress(BrokenPipeError):  # its death is reported by the hub
                channel.send(word)

    def _await(self, answers: dict[int, Any], limit_s: float, deed: str) -> None:
        while len(answers) < self._plan.workers:
            ready = self._receive(limit_s)
            if self._failures:
                deadline = time.monotonic() + GRACE_S
                while self._open and len(self._heard_of) < self._plan.workers:
                    if not self._receive(max(0.0, deadline - time.monotonic())):
                        break
                raise self._diagnosis()
            if not ready:
                silent = [str(r) for r in range(self._plan.workers) if r not in answers]
                raise RunFailedError(
                    f"nothing was heard of any worker for {limit_s:g} s; "
                    f"not yet {deed}: worker {', '.join(silent)}"
                )

    def _drain(self, deadline: float) -> None:
        """Hear all until every process is gone or the time is over."""
        while self._open and (left_s := deadline - time.monotonic()) > 0:
            self._receive(left_s)

    def _receive(self, limit_s: float) -> bool:
        ready = wait(list(self._open), limit_s)
        for channel in ready:
            assert isinstance(channel, Connection)
            try:
                self._take(self._open[channel], channel.recv())
            except (EOFError, ConnectionError):
                rank = self._open.pop(channel)
                if rank is None and len(self._results) < self._plan.workers:
                    self._fail(Failed("the hub of the workers' network died"))
        return bool(ready)

    def _take(self, rank: int | None, message: object) -> None:
        match message:
            case MetricsRow():
                self._on_row(message)
            case HubReady(net_backend):
                self._net_backend = net_backend
            case Probed() if rank is not None:
                self._probed[rank] = message
                if message.broken:
                    self._heard_of.add(rank)
            case Finished(result) if rank is not None:
                self._results[rank] = result
            case Diverged(reason):
                raise DivergedError(reason)
            case Stopped(error):
                raise error
            case Failed() if rank is not None:
                self._fail(message, rank)
            case Failed():
                self._fail(message)
            case Exited(rank, code) if code < 0:
                reason = f"worker {rank} was killed by {signal.Signals(-code).name}"
                if code == -signal.SIGKILL and num_oom_kills() > self._num_oom_kills:
                    reason += f", {ADVICE}"
                self._fail(Failed(reason, is_consequence=False), rank)
            case Exited(rank, code) if rank not in self._results:
                self._fail(Failed(f"worker {rank} exited with code {code}"), rank)

    def _fail(self, failure: Failed, rank: int | None = None) -> None:
        self._failures.append(failure)
        if rank is not None:
            self._heard_of.add(rank)

    def _diagnosis(self) -> RunFailedError:
        """The first failure that is no other's consequence; else who has kept silent."""
        first = self._failures[0]
        cause = next((f for f in self._failures if not f.is_consequence), None)
        if cause is not None:
            return RunFailedError(cause.reason, cause.details)
        silent = self._silent()
        if silent:
            return RunFailedError(f"worker {', '.join(map(str, silent))} is silent; {first.reason}")
        return RunFailedError(first.reason, first.details)

    def _silent(self) -> list[int]:
        """Who has said nothing; if all have, whom more than half of the others cannot reach."""
        ranks = range(self._plan.workers)
        unheard = [rank for rank in ranks if rank not in self._heard_of]
        if unheard:
            return unheard if self._heard_of else []
        votes = Counter(rank for failure in self._failures for rank in failure.unreachable)
        return [rank for rank in ranks if votes[rank] > (self._plan.workers - 1) / 2]


def _run_hub(
    plan: Plan,
    data: TaskData,
    rendezvous: str,
    memory: int,
    workers: list[tuple[Connection, Connection]],
    channel: Connection,
) -> int:
    """The hub's process: make the network and the workers, then report each one's end."""

    def run(rank: int) -> int:
        channel.close()
        for other, (_, theirs) in enumerate(workers):
            if other != rank:
                theirs.close()
        launcher = ParentChannel(workers[rank][1])
        return run_worker(plan, data, rank, hub, rendezvous, memory, launcher)

    launcher = ParentChannel(channel)
    try:
        hub = Hub(plan.net, plan.workers)
        launcher.send(HubReady(hub.backend))
        ranks = hub.fork_workers(run)
        for _, theirs in workers:
            theirs.close()
        while ranks:
            pid, status = os.wait()
            launcher.send(Exited(ranks.pop(pid), os.waitstatus_to_exitcode(status)))
    except NamespaceError as error:  # also when a switch in user space has died meanwhile
        launcher.send(Failed(str(error), is_consequence=False))
        return 1
    return 0
