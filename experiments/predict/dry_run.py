"""An algorithm at work on shapes, without numbers: what it does is charged to a timeline.

Its tensors are on torch's meta device, and its partners are its echo
(`bagua_algos.communication.loopback`). Its kernels take what their memory traffic takes. Worker 0
stands for all of them, since all are alike; in a hierarchy its node stands for all nodes, which do
the same on links of their own, and only the clocks of its own workers are right.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bagua_algos.communication.communicator import Nodes, Operation
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.engine.algorithm import Algorithm, Context, acts_at
from bagua_algos.engine.background import Background
from bagua_algos.engine.bucket import Bucket, build_buckets
from bagua_algos.engine.lane import CommunicationLane
from experiments.plan.late_compiler import put_off_compiler
from experiments.predict.memory_traffic import (
    CodeShapes,
    MemoryTraffic,
    NothingInPlace,
    fused_step_bytes,
)
from netsim.timeline.timeline import Mark, Moment, Timeline, TimelineJob

TIMEOUT_S = 60.0


def meta_buckets(
    shapes: Sequence[tuple[int, ...]], num_workers: int, bucket_bytes: int
) -> list[Bucket]:
    """The buckets that an engine would make of parameters of these `shapes`, without memory."""
    parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    buckets = build_buckets(
        parameters, num_held=1, world_size=num_workers, bucket_bytes=bucket_bytes
    )
    for bucket in buckets:
        bucket.place_gradients()
    return buckets


class DryRun:
    """The steps of an algorithm. The observer of its communicator, and its `Clocks`.

    Args:
        algorithm: the relaxation.
        buckets: see `meta_buckets`.
        make_optimizer: of the parameters.
        timeline: of all workers.
        memory_rate: of the device's memory, bytes per second; inf: kernels take no time, and their
            bytes are not counted.
        nodes: the workers of each, for an algorithm that is hierarchical.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        buckets: Sequence[Bucket],
        make_optimizer: Callable[..., Optimizer],
        timeline: Timeline,
        *,
        memory_rate: float,
        nodes: Nodes | None = None,
    ) -> None:
        self.optimizer_s = 0.0
        """Of all steps so far."""
        self.script: list[tuple[TimelineJob, ...]] = []
        """The jobs of every step: `Timeline.replay` repeats them on another network, unless the
        algorithm `uses_background`, whose rounds are no jobs.
        """
        self.rounds_begun: list[int] = []
        """The step, counted from 0, at whose end each round of the background has begun."""
        self._timeline = timeline
        self._memory_rate = memory_rate
        self._traffic = MemoryTraffic()
        self._algorithm = _without_numbers(algorithm, self._traffic)
        self._jobs: list[TimelineJob] = []
        self._work: list[Operation | float] = []
        self._is_aside = False
        self._round: Mark | None = None
        put_off_compiler()
        self._optimizer = make_optimizer([p for bucket in buckets for p in bucket.parameters])
        with NothingInPlace():
            self._optimizer.step()  # its state exists from now on
        _count_from_0(self._optimizer)
        communicator = LoopbackCommunicator(len(timeline.time_s), self, nodes=nodes)
        self._lane: CommunicationLane | None = None
        if algorithm.uses_background:
            self._lane = CommunicationLane(communicator, torch.device("meta"), TIMEOUT_S)
        self._context = Context(
            buckets=buckets,
            communicator=communicator,
            optimizer=self._optimizer,
            background=None if self._lane is None else Background(self._lane, self),
        )
        self._change_context(state=self._algorithm.init(self._context))

    @property
    def uses_background(self) -> bool:
        """Whether the algorithm has rounds beside its steps."""
        return self._lane is not None

    def step(self) -> None:
        """One whole step."""
        self._jobs = []
        self._timeline.begin_step()
        self._act("forward")
        for bucket in self._context.buckets:
            bucket.place_gradients()
            self._act("bucket_ready", bucket)
        self._act("backward_end")
        self._act("step_begin")
        self._take_optimizer_step()
        self._act("step_end")
        self._timeline.end_step()
        self._change_context(step=self._context.step + 1)
        self.script.append(tuple(self._jobs))

    def _change_context(self, **changes: Any) -> None:
        self._context = replace(self._context, **changes)

    def close(self) -> None:
        """End the thread of the background."""
        if self._lane is not None:
            self._lane.close()

    def on_operation(self, operation: Operation) -> None:
        """Charge the operation, and the kernels before it, to the timeline."""
        if not self._is_aside:
            self._charge_kernels()
        self._work.append(operation)
        self._timeline.on_operation(operation)

    @property
    def exposed_communication_s(self) -> float:
        """Seconds that training has waited for communication."""
        return float(self._timeline.exposed_communication_s[0])

    def now_w(self) -> Tensor:
        """Worker 0's clock, in seconds: float64 `[1]`."""
        return torch.from_numpy(self._timeline.time_s[:1].copy())

    @contextmanager
    def background(self) -> Iterator[None]:
        """Charge the operations within to a round that no worker waits for."""
        self._charge_kernels()
        self.rounds_begun.append(self._context.step)
        self._round = self._timeline.begin_background()
        self._is_aside = True
        yield
        self._is_aside = False

    def background_done_w(self) -> Tensor:
        """Whether the last round is over at worker 0's clock: bool `[1]`; true before any round."""
        if self._round is None:
            return torch.ones(1, dtype=torch.bool)
        return torch.from_numpy(self._timeline.is_done(self._round)[:1])

    def background_wait(self) -> None:
        """Set the clocks to the end of the last round."""
        if self._round is not None:
            self._timeline.wait(self._round)

    def _act(self, moment: Moment, bucket: Bucket | None = None) -> None:
        name = f"on_{moment}"
        if not acts_at(self._algorithm, name):
            return
        act = getattr(self._algorithm, name)
        traffic = nullcontext() if self._memory_rate == math.inf else self._traffic
        with self._job(moment, None if bucket is None else bucket.index), traffic:
            act(self._context) if bucket is None else act(self._context, bucket)

    @contextmanager
    def _job(self, moment: Moment, bucket: int | None = None) -> Iterator[None]:
        """What is done within is a job of the timeline, and of the script."""
        self._timeline.begin_job(moment, bucket)
        self._work = []
        yield
        self._charge_kernels()
        self._jobs.append(TimelineJob(moment=moment, bucket=bucket, work=tuple(self._work)))

    def _take_optimizer_step(self) -> None:
        seconds = fused_step_bytes(self._optimizer) / self._memory_rate
        with self._job("step_end"):
            self._kernel(seconds)
        self.optimizer_s += seconds

    def _charge_kernels(self) -> None:
        seconds, self._traffic.num_bytes = self._traffic.num_bytes / self._memory_rate, 0
        if seconds:
            self._kernel(seconds)

    def _kernel(self, seconds: float) -> None:
        self._timeline.kernel(seconds)
        self._work.append(seconds)


def _count_from_0(optimizer: Optimizer) -> None:
    """Adam's own count of steps tells an algorithm how much warm-up is left."""
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = torch.zeros_like(state["step"], device="cpu")


def _without_numbers(algorithm: Algorithm, traffic: MemoryTraffic) -> Algorithm:
    """A copy that compresses shapes; not by its constructor, which may try a code on numbers."""
    shapes_only = copy.copy(algorithm)
    compressor = getattr(algorithm, "compressor", None)
    if compressor is not None:
        object.__setattr__(shapes_only, "compressor", CodeShapes(compressor, traffic))
    return shapes_only
