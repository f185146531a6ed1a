"""Simulated clocks behind a real engine: what it does is charged to a timeline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bagua_algos.communication.communicator import Operation
from experiments.simulated.profile import Profile
from netsim.timeline.timeline import (
    Mark,
    Moment,
    Timeline,
    TimelineJob,
)

_REHEARSED = 0
"""The worker that a rehearsal is of, which hears of no operation that it has no part in."""

_CHECK = "overflow_check"
"""The engine's own job, which float16 needs: its operation is of no moment of the algorithm."""

_MOMENTS: dict[str, Moment] = {
    "on_forward": "forward",
    "on_bucket_ready": "bucket_ready",
    "on_backward_end": "backward_end",
    "on_step_begin": "step_begin",
    "on_step_end": "step_end",
    _CHECK: "overflow_check",
}


Script = Sequence[tuple[TimelineJob, ...]]
"""The jobs of every step; equal steps are one object."""


def by_profile(script: Script, profile: Profile) -> list[tuple[TimelineJob, ...]]:
    """The same jobs with the kernels of `profile`."""
    names = {moment: name for name, moment in _MOMENTS.items()}
    known: dict[int, tuple[TimelineJob, ...]] = {}
    for jobs in script:
        if id(jobs) not in known:
            known[id(jobs)] = tuple(
                replace(job, work=_work(profile, names[job.moment], job.bucket, _operations(job)))
                for job in jobs
            )
    return [known[id(jobs)] for jobs in script]


def _work(
    profile: Profile, moment: str, bucket: int | None, operations: Sequence[Operation]
) -> tuple[Operation | float, ...]:
    """Operations, and the kernels before, between and after those of the worker that a profile is
    of. What other nodes do at the same time stays beside its own node's operation.
    """
    num_own = sum(_REHEARSED in operation.ranks for operation in operations)
    kernels_s = iter(profile.kernels_s(moment, bucket, num_own))
    work: list[Operation | float] = []
    for operation in operations:
        if _REHEARSED in operation.ranks:
            work.append(next(kernels_s))
        work.append(operation)
    return *work, next(kernels_s)


def _operations(job: TimelineJob) -> list[Operation]:
    return [part for part in job.work if isinstance(part, Operation)]


class SimulatedClocks:
    """A `StepObserver` of the engine and the `Observer` of its communicator.

    Kernels take what the profile says; nothing takes time outside `running`, as evaluations in a
    real run.
    """

    def __init__(self, timeline: Timeline, profile: Profile) -> None:
        self.timeline = timeline
        self._profile = profile
        self._is_running = False
        self._is_in_step = False
        self._is_aside = False
        self._operations: list[Operation] | None = None
        self._jobs: list[TimelineJob] = []
        self._known: dict[tuple[TimelineJob, ...], tuple[TimelineJob, ...]] = {}
        self.script: list[tuple[TimelineJob, ...]] = []
        """The jobs of every step so far: `Timeline.replay` repeats them on another network."""
        self._round: Mark | None = None
        self.pace_w: np.ndarray | None = None
        """By what factor each worker is slow in the next step, 0 standing; None: as they vary."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """What happens within takes time."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def now_s(self) -> float:
        """The slowest worker's clock, in seconds."""
        return float(self.timeline.time_s.max())

    @property
    def exposed_communication_s(self) -> float:
        """What the average worker's compute has waited for its lanes, seconds."""
        return float(self.timeline.exposed_communication_s.mean())

    def next_step(self, steps_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each worker's own step `steps_w`, counted from 0: by what factor it is slow, and when
        it would end if nobody were waited for, seconds.
        """
        factors_w = np.empty(len(steps_w))
        for step in set(steps_w.tolist()):
            own_w = steps_w == step
            factors_w[own_w] = self.timeline.compute.variation.factors(step, len(steps_w))[own_w]
        compute = self.timeline.compute
        step_s = compute.forward_s + compute.backward_s + compute.optimizer_s
        return factors_w, self.timeline.time_s + factors_w * step_s

    def on_forward(self) -> None:
        """Begin a simulated step; further micro-batches belong to the same step."""
        if self._is_running and not self._is_in_step:
            self.timeline.begin_step(self.pace_w)
            self._is_in_step = True

    def on_forward_end(self) -> None:
        """Do nothing: the profile has the time of the forward pass."""

    def on_submit(self, moment: str, bucket: int | None) -> None:
        """Do nothing: the profile knows when buckets are ready."""

    def on_job(self, moment: str, bucket: int | None) -> None:
        """Begin a job on the simulated lanes and collect its operations."""
        if self._is_in_step and moment in _MOMENTS:
            self.timeline.begin_job(_MOMENTS[moment], bucket)
            self._operations = []

    def on_operation(self, operation: Operation) -> None:
        """Add the operation to its job; charge it at once in the background and between steps."""
        if self._operations is not None:
            self._operations.append(operation)
        elif self._is_in_step and not self._is_aside:
            self.on_job(_CHECK, None)
            self.on_operation(operation)
            self.on_job_end(_CHECK, None)
        elif self._is_running:
            self.timeline.on_operation(operation)

    def on_job_end(self, moment: str, bucket: int | None) -> None:
        """Charge the job's operations and kernels, now that its operations are counted."""
        if self._operations is None or moment not in _MOMENTS:
            return
        operations, self._operations = self._operations, None
        if moment == "on_step_begin" and not operations:
            return  # its kernels are among the optimizer's
        work = _work(self._profile, moment, bucket, operations)
        self.timeline.do(work)
        self._jobs.append(TimelineJob(moment=_MOMENTS[moment], bucket=bucket, work=work))

    def on_backward_end(self) -> None:
        """Do nothing: the profile has the time of the backward pass."""

    def on_synchronized(self) -> None:
        """Do nothing: the timeline adds the wait for the lanes."""

    def on_step_end(self) -> None:
        """End the simulated step and add its jobs to the script."""
        if self._is_in_step:
            self.timeline.end_step()
            self._is_in_step = False
            self.script.append(self._same_as_before(tuple(self._jobs)))
            self._jobs = []

    def _same_as_before(self, jobs: tuple[TimelineJob, ...]) -> tuple[TimelineJob, ...]:
        """Equal steps are one object: a long run is as small as its period."""
        return self._known.setdefault(jobs, jobs)

    @contextmanager
    def background(self) -> Iterator[None]:
        """The operations within are a round that no worker waits for, from each one's clock on."""
        operations, self._operations = self._operations, None
        assert not operations, "a moment communicates, or begins a round in the background"
        self._round = self.timeline.begin_background()
        self._is_aside = True
        yield
        self._is_aside = False
        self._operations = operations

    def background_done_w(self) -> Tensor:
        """Whether the last round is over at each worker's clock, bool `[N]`."""
        if self._round is None:
            return torch.ones(len(self.timeline.time_s), dtype=torch.bool)
        return torch.from_numpy(self.timeline.is_done(self._round))

    def background_wait(self) -> None:
        """All workers wait until the last round is over."""
        if self._round is not None:
            self.timeline.wait(self._round)

    def now_w(self) -> Tensor:
        """Each worker's clock, seconds, float64 `[N]`."""
        return torch.from_numpy(self.timeline.time_s.copy())
