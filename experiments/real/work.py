"""What a real worker does, however its process was started."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bagua_algos.communication.communicator import Averager, Communicator, telling_failures
from bagua_algos.communication.patterns import with_pattern
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.streams import AUTO, with_streams
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan import generators
from experiments.plan.plan import Plan
from experiments.real.pace import Meeting, make_pace
from experiments.tasks.base import TaskData
from experiments.training.checkpoints.checkpoint import Checkpoints
from experiments.training.meter import InterfaceMeter
from experiments.training.metrics import MetricsRow
from experiments.training.result import Result
from experiments.training.steps_ahead import StepsAhead
from experiments.training.trace import TraceRecorder
from experiments.training.train import train
from host.processes import schedule_as_batch

STEP_LIMITS = 4
"""A step on a GPU may take as many times the limit of one collective."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What differs between workers of this host's launcher and workers of torchrun or srun.

    Args:
        rank: this worker.
        rendezvous: joins the other workers; entered once.
        environment: variables that gloo and NCCL read, set before the rendezvous.
        gpu: CUDA's number of this worker's GPU; None: it computes on the CPU.
        bytes_sent: reads the bytes that this worker has sent; None: nothing counts them.
        averager: what evaluations average by; None: the workers' network.
        meeting: where workers that wait for nobody see who has come to an evaluation.
        recorder: hears of every step and operation, for a trace.
        profiler: runs around the training.
        share_sockets: is told how many streams carry each message, once that is known, and when it
            changes.
        on_progress: is called after every step, and every batch of an evaluation.
        on_clock: is told the training clock, in seconds, where steps begin or go on.
    """

    rank: int
    rendezvous: Callable[[], AbstractContextManager[Communicator]]
    environment: Mapping[str, str]
    meeting: Meeting
    gpu: int | None = None
    bytes_sent: Callable[[], int] | None = None
    averager: Averager | None = None
    recorder: TraceRecorder | None = None
    profiler: AbstractContextManager[Any] = field(default_factory=nullcontext)
    share_sockets: Callable[[int], None] = lambda streams: None
    on_progress: Callable[[], None] = lambda: None
    on_clock: Callable[[float], None] = lambda time_s: None


def work(
    plan: Plan,
    data: TaskData,
    surroundings: Surroundings,
    on_row: Callable[[MetricsRow], None],
    finish: Callable[[Result, Communicator], list[Result]] = lambda result, _: [result],
) -> list[Result]:
    """Train as one real worker; returns what `finish` makes of its result.

    Args:
        plan: the run.
        data: all examples.
        surroundings: of this worker.
        on_row: is given every row of metrics.
        finish: is called before the workers part.

    Raises:
        DivergedError: the loss is not finite.
        CommunicationError: another worker is gone or silent.
    """
    assert plan.backend.process_group is not None, "simulated workers have no process"
    schedule_as_batch()
    torch.set_num_threads(plan.cluster.threads_per_worker)
    generators.begin(plan.seed * plan.workers + surroundings.rank)
    os.environ.update(surroundings.environment)
    steps_ahead = None
    if surroundings.gpu is not None:
        torch.cuda.set_device(surroundings.gpu)
        steps_ahead = StepsAhead(STEP_LIMITS * plan.cluster.timeout_s)
    recorded = _recorded(plan, surroundings.rank)
    with (
        telling_failures(surroundings.rank),
        surroundings.rendezvous() as communicator,
        surroundings.profiler,
    ):
        communicator, transport = _transport(plan, communicator, recorded)
        surroundings.share_sockets(transport["streams"])
        communicator.observer = surroundings.recorder
        communicator.on_streams = surroundings.share_sockets  # autotuning changes it
        result = train(
            plan,
            data,
            SingleModel(plan.model.to(plan.backend.device)),
            communicator,
            InterfaceMeter(surroundings.bytes_sent, steps_ahead, plan.backend.device),
            on_row,
            surroundings.recorder,
            surroundings.averager,
            lambda model, optimizer: make_pace(plan, surroundings.meeting),
            on_progress=surroundings.on_progress,
            on_clock=surroundings.on_clock,
        )
        return finish(replace(result, **transport), communicator)


def _transport(
    plan: Plan, communicator: Communicator, recorded: Mapping[str, Any]
) -> tuple[Communicator, dict[str, Any]]:
    """The communicator with the plan's streams and pattern, and these fields of a `Result`. What is
    to be measured is taken from what is `recorded`, if anything is: sums depend on it by a
    rounding. A collective call.
    """
    streams, pieces = plan.streams, plan.pieces
    if streams == AUTO and recorded:
        streams = recorded["streams"]
        pieces = recorded.get("pieces", False) if pieces is None else pieces and streams > 1
    communicator, stream_trial = with_streams(communicator, streams, pieces)
    if plan.pattern == AUTO and recorded:
        assert isinstance(communicator, ProcessGroupCommunicator), "gloo's"
        limit, pattern_trial = recorded["halving_doubling_bytes"], None
        communicator = communicator.with_transport(halving_doubling_bytes=limit)
    else:
        communicator, pattern_trial = with_pattern(communicator, plan.pattern)
    return communicator, {
        "streams": communicator.streams,
        "stream_trial": stream_trial,
        "pieces": communicator.pieces,
        "halving_doubling_bytes": communicator.halving_doubling_bytes,
        "pattern_trial": pattern_trial,
    }


def _recorded(plan: Plan, rank: int) -> dict[str, Any]:
    """The checkpoint that the run goes on from; empty where there is none, or nothing of it is
    needed before training.
    """
    if AUTO not in (plan.streams, plan.pattern) or plan.resume is None:
        return {}
    saved, step = Checkpoints(plan.resume, rank, plan.workers).to_resume(plan.resume_step)
    return saved.load(step)
