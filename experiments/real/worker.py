"""What one worker's process does, from the moment its link is up, and what it says to the
launcher.
"""

import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NoReturn

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.process_group import file_rendezvous
from experiments.plan.plan import Plan
from experiments.real.nccl import nccl_environment, plugin_environment
from experiments.real.shared_memory import HostMemory
from experiments.real.work import Surroundings, work
from experiments.tasks.base import TaskData
from experiments.training.device_trace import device_trace
from experiments.training.result import DivergedError, Result
from experiments.training.trace import TraceFile, TraceRecorder
from host.channel import ParentChannel
from host.errors import UserError
from host.gpus import placement
from host.memory import ADVICE, is_lack_of_memory
from netsim.conditions.condition import NetworkCondition
from netsim.errors import BrokenProbeError, ProbeError
from netsim.links import counters, tcp
from netsim.links.namespaces import Hub
from netsim.links.netlink import INTERFACE
from netsim.links.tcp import TcpSettings
from netsim.proof import proof
from netsim.proof.proof import LinkReport
from netsim.proof.reachability import unreachable

PROBE, TRAIN = "probe", "train"
"""What the launcher says to a worker: PROBE any number of times, then TRAIN."""


@dataclass(frozen=True)
class Probed:
    """What this worker's link turned out to be, None for a single worker, and its TCP; or why the
    probe broke off.
    """

    link: LinkReport | None
    tcp: TcpSettings
    broken: str = ""


@dataclass(frozen=True)
class Finished:
    """The worker is done."""

    result: Result


@dataclass(frozen=True)
class Diverged:
    """The worker's loss is not finite."""

    reason: str


@dataclass(frozen=True)
class Stopped:
    """The worker cannot go on, for a reason that lies outside of the program."""

    error: UserError


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on. `is_consequence`: only because of what became of another worker.

    `unreachable` are the ranks whose network does not answer this worker's.
    """

    reason: str
    is_consequence: bool = True
    details: str = ""
    unreachable: tuple[int, ...] = ()


def run_worker(
    plan: Plan,
    data: TaskData,
    rank: int,
    network: Hub,
    rendezvous: str,
    memory: int,
    launcher: ParentChannel,
) -> int:
    """Probe the network and train as the launcher says; returns the exit code.

    Args:
        plan: the run.
        data: all examples.
        rank: this worker.
        network: that joins the workers.
        rendezvous: a file that all workers share.
        memory: another, for `HostMemory`.
        launcher: hears of everything, and says when training may start.
    """
    addresses = [network.address(r) for r in range(plan.workers)]
    try:
        while launcher.recv() == PROBE:
            launcher.send(_probe(plan.net, rank, addresses))
        network.start_clock()
        launcher.send(Finished(_train(plan, data, rank, rendezvous, memory, launcher)))
    except DivergedError as error:
        launcher.send(Diverged(str(error)))
    except UserError as error:
        launcher.send(Stopped(error))
        return 1
    except (CommunicationError, ProbeError) as error:
        silent = unreachable(rank, addresses)
        details = traceback.format_exc()
        launcher.send(Failed(str(error), details=details, unreachable=tuple(silent)))
        _stay(launcher)
    except Exception as error:
        if is_lack_of_memory(error):
            launcher.send(Failed(f"worker {rank} has failed, {ADVICE}", is_consequence=False))
            return 1
        reason = f"worker {rank}: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        launcher.send(Failed(reason, is_consequence=False, details=traceback.format_exc()))
        return 1
    return 0


def _probe(condition: NetworkCondition, rank: int, addresses: list[str]) -> Probed:
    try:
        return Probed(proof.probe(condition, rank, addresses), tcp.read())
    except BrokenProbeError as error:
        return Probed(None, tcp.read(), str(error))


def _stay(launcher: ParentChannel) -> NoReturn:
    """Keep this worker's network alive, for the others to tell whom they cannot reach."""
    launcher.recv()  # without a limit: the launcher's death is this process's
    raise AssertionError("the launcher has nothing more to say")


def _train(
    plan: Plan, data: TaskData, rank: int, rendezvous: str, memory: int, launcher: ParentChannel
) -> Result:
    recorder = TraceRecorder(rank) if plan.trace and not plan.backend.has_gpu_workers else None
    surroundings = _surroundings(plan, rank, rendezvous, memory, recorder)
    report = launcher.send if rank == 0 else lambda row: None
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
        recorder=recorder,
        profiler=(
            device_trace(plan.folder, rank)
            if plan.trace and plan.backend.has_gpu_workers
            else nullcontext()
        ),
    )
