"""A run of which torchrun or srun has started the processes, on one machine or several.

Each process is a worker, and worker 0 keeps the record, in a folder that all of them see. The
network is the machines' own. A process that dies ends the others; started again, the run goes on in
its folder from its last checkpoint, with as many workers as there are then.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from omegaconf import DictConfig

from bagua_algos.communication.communicator import CommunicationError, Communicator
from bagua_algos.communication.process_group import rendezvous
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.factory import make_plan
from experiments.plan.identity import plain
from experiments.plan.plan import Plan
from experiments.real.local import Network, RunFailedError
from experiments.real.peers import Team
from experiments.real.rank import Place
from experiments.real.routes import LOOPBACK
from experiments.real.worker import STEP_LIMITS
from experiments.runs.resume import FREE, check_same
from experiments.runs.run import Recorder, load_data
from experiments.runs.study import Standing, read_record
from experiments.tasks.base import TaskData
from experiments.training.checkpoint import newest
from experiments.training.meter import InterfaceMeter
from experiments.training.steps_ahead import StepsAhead
from experiments.training.train import DivergedError, Result, train
from host.errors import UserError
from host.gpus import place as place_on_gpus
from netsim.links import counters

GRACE_S = 3.0
"""How long a worker that lost another waits for its word."""

Row = dict[str, Any]


def run_placed(config: DictConfig, folder: Path, overrides: Sequence[str], team: Team) -> str:
    """Run `config` as one of the workers of `team`; returns the status that the record has.

    Raises `UserError` where it cannot be run so.
    """
    torch.set_num_threads(1)
    is_first = team.place.rank == 0
    try:
        plan = _on_machines(make_plan(config, folder), team.place)
        data = load_data(plan, needs_namespaces=False)
        if is_first:
            return _lead(plan, plain(config), overrides, data, team)
    except UserError as error:
        if is_first:
            team.say({"refused": str(error)})
            with suppress(OSError):
                folder.rmdir()  # Hydra has made it; if it is not empty it is not ours
        raise
    return _follow(plan, data, team)


def check_placed(plan: Plan, place: Place) -> None:
    """Raise `UserError` for what cannot be run by processes that `place.starter` has started."""
    nodes = plan.net.nodes
    if plan.backend.is_simulated:
        raise UserError(
            f"backend=sim simulates all workers in one process: start it without {place.starter}"
        )
    if plan.net.varies or not all(link.is_ideal for link in plan.net.all_links(plan.workers)):
        raise UserError(
            f"net={plan.names['net']} shapes links, which nothing does between workers that "
            f"{place.starter} has started: add net=none"
        )
    if nodes is not None and nodes["size"] != place.local_world_size:
        raise UserError(
            f"net.nodes.size={nodes['size']}, but {place.starter} has started "
            f"{place.local_world_size} on this machine: give that number"
        )
    if plan.trace:
        raise UserError(f"trace=true has no clock for all machines: start without {place.starter}")
    if plan.backend.has_gpu_workers and place_on_gpus(place.local_world_size).is_shared:
        raise UserError(
            f"{place.starter} has started {place.local_world_size} workers here, and there are "
            "fewer GPUs: start one for each GPU"
        )


def _on_machines(plan: Plan, place: Place) -> Plan:
    """The plan, whose network is no other run's."""
    check_placed(plan, place)
    hosts = "1 host" if place.num_hosts == 1 else f"{place.num_hosts} hosts"
    return replace(plan, names=plan.names | {"net": f"own network, {hosts}"})


def _lead(
    plan: Plan, config: dict[str, Any], overrides: Sequence[str], data: TaskData, team: Team
) -> str:
    """Worker 0's part: decide where to begin, tell the others, train and keep the record."""
    record = read_record(plan.folder, is_held=False)
    goes_on = record is not None and record.standing is not Standing.DONE
    if record is not None and not goes_on and team.place.num_restarts:
        team.say({"status": record.status})  # a worker died after the end
        return record.status
    if goes_on:
        plan = _continued(plan, config)
    known = {"started_by": team.place.starter, "hosts": team.place.num_hosts, "shared_gpu": False}

    def start(
        plan: Plan, data: TaskData, on_network: Callable[[Network | None], None], on_row: Any
    ) -> list[Result]:
        return _train(plan, data, team, lambda: on_network(None), on_row)

    recorder = Recorder(plan, config, overrides, start, known, goes_on=goes_on)
    resume = None if plan.resume is None else str(plan.resume)
    team.say({"resume": resume, "step": plan.resume_step})
    return recorder.run(data)


def _continued(plan: Plan, config: dict[str, Any]) -> Plan:
    """`plan` from the last checkpoint of the run that its folder holds.

    Raises `UserError` where that is another run.
    """
    check_same(config, plan.folder, (*FREE, "workers"))
    step = newest(plan.folder)
    return plan if step is None else replace(plan, resume=plan.folder, resume_step=step)


def _follow(plan: Plan, data: TaskData, team: Team) -> str:
    """Another worker's part."""
    word = team.hear()
    if "refused" in word:
        raise UserError(word["refused"])
    if "status" in word:
        return word["status"]
    resume = None if word["resume"] is None else Path(word["resume"])
    plan = replace(plan, resume=resume, resume_step=word["step"])
    try:
        _train(plan, data, team, lambda: None, lambda row: None)
    except DivergedError:
        return "diverged"
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return "failed"
    return "completed"


def _train(
    plan: Plan,
    data: TaskData,
    team: Team,
    on_start: Callable[[], None],
    on_row: Callable[[Row], None],
) -> list[Result]:
    """Train as one worker; returns all workers' results.

    Raises:
        DivergedError: some worker's loss is not finite.
        RunFailedError: another worker is gone or silent.
    """
    assert plan.backend.process_group is not None, "simulated workers have no process"
    place, interface = team.place, team.interface()
    torch.set_num_threads(plan.cluster.threads_per_worker)
    torch.manual_seed(plan.seed * plan.workers + place.rank)
    steps_ahead = _take_gpu(plan, place) if plan.backend.has_gpu_workers else None
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    count = _counter(plan, place, interface)
    on_start()
    try:
        with rendezvous(
            team.store,
            backend=plan.backend.process_group,
            rank=place.rank,
            world_size=place.world_size,
            timeout_s=plan.cluster.timeout_s,
            nodes=plan.nodes,
        ) as communicator:
            result = train(
                plan,
                data,
                SingleModel(plan.model.to(plan.backend.device)),
                communicator,
                InterfaceMeter(count or (lambda: 0), steps_ahead, plan.backend.device),
                on_row if count else lambda row: on_row(row | {"bytes_sent": None}),
            )
            return _gather(result, communicator, plan.backend.device, is_counted=count is not None)
    except DivergedError as error:
        team.store.set("diverged", str(error))
        raise
    except CommunicationError as error:
        _raise_cause(error, team)


def _counter(plan: Plan, place: Place, interface: str | None) -> Callable[[], int] | None:
    """Reads the bytes that this worker has sent to others; None where nothing counts them: workers
    share an interface, or NCCL may go past it.
    """
    if interface in (None, LOOPBACK) or place.local_world_size > 1 or plan.backend.has_gpu_workers:
        return None
    return lambda: counters.bytes_sent(interface)


def _take_gpu(plan: Plan, place: Place) -> StepsAhead:
    """From here on this process computes on a GPU of its own."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # see `host.gpus`
    torch.cuda.set_device(place_on_gpus(place.local_world_size).index(place.local_rank))
    return StepsAhead(STEP_LIMITS * plan.cluster.timeout_s)


def _gather(
    result: Result, communicator: Communicator, device: str, *, is_counted: bool
) -> list[Result]:
    """All workers' results: what differs between them comes from each."""
    sent = result.bytes_sent if is_counted else None
    own = torch.tensor(
        [[-1 if sent is None else sent, result.exposed_communication_s]],
        dtype=torch.float64,
        device=device,
    )
    return [
        replace(
            result,
            bytes_sent=None if sent < 0 else int(sent),
            exposed_communication_s=exposed_s,
        )
        for sent, exposed_s in communicator.all_gather(own)[0].tolist()
    ]


def _raise_cause(error: CommunicationError, team: Team) -> NoReturn:
    """`DivergedError` where another worker has said so, else `RunFailedError`."""
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s:
        reason = team.heard("diverged")
        if reason is not None:
            raise DivergedError(reason) from error
        time.sleep(0.1)
    raise RunFailedError(str(error)) from error
