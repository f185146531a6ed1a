"""Real workers on this host: one process each, forked from one that has imported torch once.

    launcher  --fork-->  crew  --fork-->  worker 0, worker 1, ...

Each dies with its parent, by the kernel's hand, so a run leaves nothing behind however it ends.
Workers speak to the launcher over socket pairs, off the network under test, which
`experiments.real.network` has made and proven.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from experiments.plan.plan import Plan
from experiments.real.messages import (
    TRAIN,
    Diverged,
    Exited,
    Finished,
    Joined,
    Stopped,
    TrainingGoesOn,
)
from experiments.real.network import DIED, START_LIMIT_S, ShapedNetwork, WorkersNetwork
from experiments.real.supervisor import Supervisor
from experiments.real.worker import run_worker
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow
from experiments.training.result import DivergedError, Result
from experiments.training.torch_ddp import before_forks
from host.forks.channel import ParentChannel
from host.processes import fork

END_LIMIT_S = 5


def launch(
    plan: Plan,
    data: TaskData,
    on_network: Callable[[ShapedNetwork], None],
    on_row: Callable[[MetricsRow], None],
    network: WorkersNetwork | None = None,
) -> list[Result]:
    """Run `plan` on real workers behind shaped links; returns their results by rank.

    Args:
        plan: the run.
        data: all examples.
        on_network: is given what the network turned out to be, before training.
        on_row: is given every row of metrics.
        network: of the plan, which is taken down at the end; None: one is made now.

    Raises:
        RunFailedError: the network is not what was asked for, or a worker has died or failed.
        DivergedError: the loss is not finite.
        UserError: a worker was stopped, such as by a full disk, or there is no checkpoint to go on
            from.
    """
    network = network or WorkersNetwork(plan.net, plan.workers)
    try:
        shaped = network.await_proof()
        crew = _Crew(plan, data, network)
        try:
            on_network(shaped)
            return crew.results(on_row)
        finally:
            crew.end()
    finally:
        network.end()


class _Crew:
    """The workers, as the launcher sees them, and the process that has forked them."""

    def __init__(self, plan: Plan, data: TaskData, network: WorkersNetwork) -> None:
        self._plan = plan
        self._network = network
        self._joined: dict[int, Joined] = {}
        self._results: dict[int, Result] = {}
        self._on_row: Callable[[MetricsRow], None] = lambda row: None
        # Files without a name, which nobody has to remove: over one workers find each other.
        self._files = [os.memfd_create("relaxlab-rendezvous"), os.memfd_create("relaxlab-memory")]
        workers = [Pipe() for _ in range(plan.workers)]
        crew_ours, crew_theirs = Pipe()

        def run_crew() -> int:
            # Ctrl-C reaches all processes of a terminal; the launcher answers, and ends the rest.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for channel in (network.channel, crew_ours, *(ours for ours, _ in workers)):
                channel.close()
            return _run_crew(plan, data, network, self._files, workers, crew_theirs)

        self._pid = fork(run_crew)
        for channel in (crew_theirs, *(theirs for _, theirs in workers)):
            channel.close()
        self._channels = [ours for ours, _ in workers]
        others = {network.channel: DIED, crew_ours: "the process that has forked the workers died"}
        self._supervisor = Supervisor(self._channels, others, self._take)

    def results(self, on_row: Callable[[MetricsRow], None]) -> list[Result]:
        """Let the workers train and wait for their results."""
        self._on_row = on_row
        self._supervisor.await_all(self._joined, START_LIMIT_S, "entered its network")
        self._network.release()
        self._supervisor.say(TRAIN)
        # Of a step: worker 0 is heard of after each, or each batch of an evaluation. Collectives
        # have the limit timeout_s, and a step has several.
        limit_s = START_LIMIT_S + 10 * self._plan.cluster.timeout_s
        self._supervisor.await_all(self._results, limit_s, "finished")
        return [self._results[rank] for rank in range(self._plan.workers)]

    def end(self) -> None:
        """Let workers that are done exit; kill the rest. When it returns, none is left."""
        self._supervisor.forget(self._network.channel)
        if len(self._results) == self._plan.workers:
            self._supervisor.drain(END_LIMIT_S)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # the workers die with it
        os.waitpid(self._pid, 0)
        self._supervisor.drain(END_LIMIT_S)
        for channel in self._channels:
            channel.close()
        for file in self._files:
            os.close(file)

    def _take(self, rank: int | None, message: object) -> None:
        match message:
            case MetricsRow():
                self._on_row(message)
            case TrainingGoesOn():
                self._network.set_clock(message)
            case Joined() if rank is not None:
                self._joined[rank] = message
            case Finished(result) if rank is not None:
                self._results[rank] = result
            case Diverged(reason):
                raise DivergedError(reason)
            case Stopped(error):
                raise error


def _run_crew(
    plan: Plan,
    data: TaskData,
    network: WorkersNetwork,
    files: list[int],
    workers: list[tuple[Connection, Connection]],
    channel: Connection,
) -> int:
    """The crew's process: fork the workers, then report each one's end."""
    rendezvous, memory = f"/proc/self/fd/{files[0]}", files[1]

    def run(rank: int) -> int:
        channel.close()
        for other, (_, theirs) in enumerate(workers):
            if other != rank:
                theirs.close()
        launcher = ParentChannel(workers[rank][1])
        return run_worker(plan, data, rank, network, rendezvous, memory, launcher)

    launcher = ParentChannel(channel)
    before_forks(plan.algorithm)
    ranks = {fork(lambda rank=rank: run(rank)): rank for rank in range(plan.workers)}
    for _, theirs in workers:
        theirs.close()
    while ranks:
        pid, status = os.wait()
        launcher.send(Exited(ranks.pop(pid), os.waitstatus_to_exitcode(status)))
    return 0
