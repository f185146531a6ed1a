"""What one worker's process does, from the moment its link is proven."""

import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import NoReturn

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.rendezvous import file_rendezvous
from experiments.plan.plan import Plan
from experiments.real.messages import (
    TRAIN,
    Alive,
    Diverged,
    Failed,
    Finished,
    Joined,
    Stopped,
    TrainingGoesOn,
    failed_by,
)
from experiments.real.nccl import nccl_environment, plugin_environment
from experiments.real.network import WorkersNetwork
from experiments.real.shared_memory import HostMemory
from experiments.real.work import Surroundings, work
from experiments.tasks.base import TaskData
from experiments.training.device_trace import device_trace
from experiments.training.result import DivergedError, Result
from experiments.training.trace import TraceFile, TraceRecorder
from host.errors import UserError
from host.forks.channel import ParentChannel
from host.gpus import placement
from netsim.errors import NamespaceError
from netsim.links import counters, tcp
from netsim.links.namespaces import address
from netsim.links.netlink import INTERFACE
from netsim.proof.reachability import unreachable

ALIVE_EVERY_S = 5.0
"""For how long worker 0 says nothing, if its steps are no longer."""


class Voice:
    """What is heard of a worker while it trains: its rows, and that it is alive where it has long
    had none.

    Args:
        launcher: hears it.
        clock: in seconds.
    """

    def __init__(
        self, launcher: ParentChannel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._spoke_s = clock()

    def say(self, message: object) -> None:
        """Tell the launcher."""
        self._launcher.send(message)
        self._spoke_s = self._clock()

    def say_alive(self) -> None:
        """To be called between steps: nearly always it only looks at the time."""
        if self._clock() - self._spoke_s >= ALIVE_EVERY_S:
            self.say(Alive())


def run_worker(
    plan: Plan,
    data: TaskData,
    rank: int,
    network: WorkersNetwork,
    rendezvous: str,
    memory: int,
    launcher: ParentChannel,
) -> int:
    """Enter the network and train when the launcher says so; returns the exit code.

    Args:
        plan: the run.
        data: all examples.
        rank: this worker.
        network: that joins the workers, and is there.
        rendezvous: a file that all workers share.
        memory: another, for `HostMemory`.
        launcher: hears of everything, and says when training may start.
    """
    try:
        network.enter(rank)
        launcher.send(Joined())
        assert launcher.recv() == TRAIN, "there is one word"
        launcher.send(Finished(_train(plan, data, rank, rendezvous, memory, launcher)))
    except DivergedError as error:
        launcher.send(Diverged(str(error)))
    except UserError as error:
        launcher.send(Stopped(error))
        return 1
    except CommunicationError as error:
        silent = unreachable(rank, [address(r) for r in range(plan.workers)])
        details = traceback.format_exc()
        launcher.send(Failed(str(error), details=details, unreachable=tuple(silent)))
        _stay(launcher)
    except NamespaceError as error:
        launcher.send(Failed(f"worker {rank}: {error}"))
        return 1
    except Exception as error:
        launcher.send(failed_by(error, rank))
        return 1
    return 0


def _stay(launcher: ParentChannel) -> NoReturn:
    """Keep this worker's network alive, for the others to tell whom they cannot reach."""
    launcher.recv()  # without a limit: the launcher's death is this process's
    raise AssertionError("the launcher has nothing more to say")


def _train(
    plan: Plan, data: TaskData, rank: int, rendezvous: str, memory: int, launcher: ParentChannel
) -> Result:
    recorder = TraceRecorder(rank) if plan.trace and not plan.backend.has_gpu_workers else None
    surroundings = _surroundings(plan, rank, rendezvous, memory, recorder)
    voice = Voice(launcher)
    report = voice.say if rank == 0 else lambda row: None
    if rank == 0:
        surroundings = replace(surroundings, on_progress=voice.say_alive)
    if rank == 0 and plan.net.varies:
        surroundings = replace(surroundings, on_clock=lambda at_s: voice.say(TrainingGoesOn(at_s)))
    (result,) = work(plan, data, surroundings, report)
    if recorder is not None:
        TraceFile(plan.folder).write_part(recorder.events, rank)
    return result


def _surroundings(
    plan: Plan, rank: int, rendezvous: str, memory: int, recorder: TraceRecorder | None
) -> Surroundings:
    """A worker behind its shaped link: its traffic leaves by that link alone, evaluations average
    through memory that the workers share.
    """
    environment = {"GLOO_SOCKET_IFNAME": INTERFACE}  # else gloo listens on 127.0.0.1
    gpu = None
    if plan.backend.has_gpu_workers:
        gpus = placement(plan.workers)
        gpu = gpus.index(rank)
        environment |= nccl_environment(rank, is_shared=gpus.is_shared, interface=INTERFACE)
        environment |= plugin_environment(plan.cluster.net_plugin)
    limit_s = plan.cluster.timeout_s
    host_memory = HostMemory(memory, rank=rank, world_size=plan.workers, limit_s=limit_s)
    return Surroundings(
        rank=rank,
        rendezvous=lambda: file_rendezvous(
            rendezvous,
            backend=str(plan.backend.process_group),
            rank=rank,
            world_size=plan.workers,
            timeout_s=limit_s,
            nodes=plan.nodes,
        ),
        environment=environment,
        gpu=gpu,
        bytes_sent=lambda: counters.bytes_sent(INTERFACE),
        averager=host_memory,
        meeting=host_memory,
        share_sockets=tcp.share_unsent,
        recorder=recorder,
        profiler=(
            device_trace(plan.folder, rank)
            if plan.trace and plan.backend.has_gpu_workers
            else nullcontext()
        ),
    )
