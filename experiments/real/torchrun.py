"""Workers whose processes torchrun or srun has started, on one machine or several. The network is
the machines' own.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import torch

from bagua_algos.communication.communicator import CommunicationError, Communicator
from bagua_algos.communication.rendezvous import rendezvous
from experiments.plan.plan import Plan
from experiments.real.assignment import Assignment
from experiments.real.failures import RunFailedError
from experiments.real.nccl import UNWATCHED, plugin_environment
from experiments.real.pace import StoreMeeting
from experiments.real.peers import Peers
from experiments.real.routes import LOOPBACK
from experiments.real.work import Surroundings, work
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow
from experiments.training.result import DivergedError, Result
from host.errors import UserError
from host.gpus import placement
from netsim.conditions.condition import NetworkCondition
from netsim.links import counters

GRACE_S = 3.0
"""How long a worker that lost another waits for its word."""

_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_OF_NAMESPACES = (
    *("congestion_control", "tcp_slow_start_after_idle", "tcp_wmem_max_kb", "tcp_rmem_max_kb"),
    *("mtu", "queue_ms", "backend"),
)
"""What is set in the workers' namespaces, and here there are none."""


def check_assigned(plan: Plan, assignment: Assignment) -> None:
    """Raise `UserError` for what cannot be run by processes that torchrun or srun has started."""
    starter, num_local = assignment.starter, assignment.local_world_size
    if plan.backend.is_simulated:
        raise UserError(
            f"backend=sim simulates all workers in one process: start it without {starter}"
        )
    if plan.net.varies or not all(link.is_ideal for link in plan.net.all_links(plan.workers)):
        raise UserError(
            f"net={plan.names['net']} shapes links, which nothing does between workers that "
            f"{starter} has started: add net=none"
        )
    own = NetworkCondition()
    for name in _OF_NAMESPACES:
        if getattr(plan.net, name) not in (None, getattr(own, name)):
            raise UserError(
                f"net.{name} is set by nothing between workers that {starter} has started, whose "
                "machines have settings of their own: leave it out"
            )
    _check_nodes(plan, assignment)
    if plan.trace:
        raise UserError(f"trace=true has no clock for all machines: start without {starter}")
    if plan.backend.has_gpu_workers and placement(num_local).is_shared:
        raise UserError(
            f"{starter} has started {num_local} workers here, and there are "
            "fewer GPUs: start one for each GPU"
        )


def _check_nodes(plan: Plan, assignment: Assignment) -> None:
    """Raise `UserError` where a node of the plan is not one machine. Starters number the workers of
    a machine in the order of their ranks, so wherever one is not, some worker sees it.
    """
    if plan.net.nodes is None:
        return
    starter, size = assignment.starter, plan.net.nodes["size"]
    if size != assignment.local_world_size:
        raise UserError(
            f"net.nodes.size={size}, but {starter} has started "
            f"{assignment.local_world_size} on this machine: give that number"
        )
    if assignment.num_hosts > 1 and assignment.rank % size != assignment.local_rank:
        first = assignment.rank // size * size
        raise UserError(
            f"net.nodes takes workers {first} to {first + size - 1} for those of one machine, and "
            f"{starter} has put them on several: start with --distribution=block"
        )


def work_as_peer(
    plan: Plan, data: TaskData, peers: Peers, on_row: Callable[[MetricsRow], None]
) -> list[Result]:
    """Train as one worker; returns all workers' results.

    Raises:
        DivergedError: some worker's loss is not finite.
        RunFailedError: another worker is gone or silent.
    """
    surroundings = _surroundings(plan, peers)

    def gather(result: Result, communicator: Communicator) -> list[Result]:
        return _gather(result, communicator, plan.backend.device)

    try:
        return work(plan, data, surroundings, on_row, gather)
    except DivergedError as error:
        peers.store.set("diverged", str(error))
        raise
    except CommunicationError as error:
        _raise_cause(error, peers)


def _surroundings(plan: Plan, peers: Peers) -> Surroundings:
    """Between machines whose own network joins the workers."""
    assignment, interface = peers.assignment, _interface(peers)
    environment, gpu = {}, None
    if plan.backend.has_gpu_workers:
        gpu = placement(assignment.local_world_size).index(assignment.local_rank)
        environment |= UNWATCHED | plugin_environment(plan.cluster.net_plugin)
    if interface is not None and not os.environ.get(_GLOO_INTERFACE):
        environment |= {_GLOO_INTERFACE: interface}
    return Surroundings(
        rank=assignment.rank,
        rendezvous=lambda: rendezvous(
            peers.store,
            backend=str(plan.backend.process_group),
            rank=assignment.rank,
            world_size=assignment.world_size,
            timeout_s=plan.cluster.timeout_s,
            nodes=plan.nodes,
        ),
        environment=environment,
        meeting=StoreMeeting(peers.store, assignment.world_size),
        gpu=gpu,
        bytes_sent=_counter(plan, assignment, interface),
    )


def _interface(peers: Peers) -> str | None:
    """Through which gloo speaks to the workers on other hosts; None: it is not known, or several
    are.
    """
    leads, chosen = peers.interface(), os.environ.get(_GLOO_INTERFACE)
    if leads == LOOPBACK or not chosen:
        return leads
    return None if "," in chosen else chosen


def _counter(plan: Plan, assignment: Assignment, interface: str | None) -> Callable[[], int] | None:
    """Reads the bytes that this worker has sent to others; None where nothing counts them: workers
    share an interface, or NCCL may go past it.
    """
    if (
        interface in (None, LOOPBACK)
        or assignment.local_world_size > 1
        or plan.backend.has_gpu_workers
    ):
        return None
    return lambda: counters.bytes_sent(interface)


def _gather(result: Result, communicator: Communicator, device: str) -> list[Result]:
    """All workers' results: what differs between them comes from each."""
    sent = result.bytes_sent
    own = torch.tensor(
        [[-1 if sent is None else sent, result.exposed_communication_s, result.data_wait_s or 0.0]],
        dtype=torch.float64,
        device=device,
    )
    return [
        replace(
            result,
            bytes_sent=None if sent < 0 else int(sent),
            exposed_communication_s=exposed_s,
            data_wait_s=data_wait_s,
        )
        for sent, exposed_s, data_wait_s in communicator.all_gather(own)[0].tolist()
    ]


def _raise_cause(error: CommunicationError, peers: Peers) -> NoReturn:
    """`DivergedError` where another worker has said so, else `RunFailedError`."""
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s:
        reason = peers.heard("diverged")
        if reason is not None:
            raise DivergedError(reason) from error
        time.sleep(0.1)
    raise RunFailedError(str(error)) from error
