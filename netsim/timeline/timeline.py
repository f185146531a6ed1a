"""The clocks of simulated workers: what a training step costs each of them.

    compute   | forward |      backward      |  wait  | optimizer | wait |
    lane 0     <forward>     <bucket 0> <bucket 2>                <step end>
    lane 1                       <bucket 1>
    background               <a round that nobody waits for          ...

Max-plus algebra over one number for each worker and lane. A job starts once its gradients are ready
and its lane is free, and training waits for the latest lane. So a step costs O(workers), and no
event is kept for a message.

A training loop that computes the values of all workers calls it live, as the communicator's
observer; without values, `replay` repeats the jobs of a step that is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from netsim.timeline.compute import ComputeTimes
from netsim.timeline.cost_model import CostedOperation, CostModel
from netsim.timeline.lanes import (
    Event,
    Kernel,
    Lanes,
    Mark,
    Ready,
    spans,
)
from netsim.timeline.link_table import Array

Moment = Literal[
    "forward", "overflow_check", "bucket_ready", "backward_end", "step_begin", "step_end"
]


@dataclass(frozen=True, kw_only=True)
class TimelineJob:
    """One moment of an algorithm: operations, and seconds of kernels between them.

    An overflow check is the engine's own, once backward has computed all gradients: compute waits
    for it before the first bucket is ready.
    """

    moment: Moment
    bucket: int | None = None
    work: Sequence[CostedOperation | float] = ()


class _Stage(IntEnum):
    """What compute has reached; passing on from one waits for the lanes."""

    OUTSIDE = 0
    FORWARD = 1
    BACKWARD = 2
    BACKWARD_END = 3
    STEP_END = 4


_STAGES = {
    "forward": _Stage.FORWARD,
    "overflow_check": _Stage.BACKWARD,
    "bucket_ready": _Stage.BACKWARD,
    "backward_end": _Stage.BACKWARD_END,
    "step_begin": _Stage.BACKWARD_END,
    "step_end": _Stage.STEP_END,
}


class Timeline:
    """N workers' clocks, at 0 when training begins; `go_on` takes up a training that has begun.
    Operations outside a step are waited for.

    `exposed_communication_s [N]` adds up what compute waited for within steps; `num_steps` counts
    those that have ended.

    Args:
        model: of what operations cost.
        compute: what a step's compute takes.
        num_lanes: that the engine uses: 2 between processes on CPUs, else 1.
        host_load: part of their host's processors that the workers' compute and kernels keep busy,
            if they share one. Moving bytes takes these, too: no step is shorter than all together.
        host_wait: part of this work for which a thread waits until a processor is free, if they
            share a host that has fewer of them than workers. So do the threads that communicate: no
            step is shorter than the jobs of one lane, the optimizer after them, and such waits.
        records_events: whether to keep `events`, for a picture; takes memory with every step.
    """

    def __init__(
        self,
        model: CostModel,
        compute: ComputeTimes,
        *,
        num_lanes: int = 2,
        host_load: float = 1.0,
        host_wait: float = 0.0,
        records_events: bool = False,
    ) -> None:
        self.num_steps = 0
        self.exposed_communication_s: Array = np.zeros(model.world_size)
        self.compute = compute
        self._num_lanes = num_lanes
        self._host_load = host_load
        self._host_wait = host_wait
        self._begin_s: Array = np.zeros(model.world_size)
        self._host_before_s = 0.0
        self._operating_before_s: Array = np.zeros(num_lanes + 1)
        self._kernels_before_s: Array = np.zeros(num_lanes + 1)
        self._lanes = Lanes(model, num_lanes + 1, records_events=records_events)
        self._has_switch = model.host.has_switch
        self._records_events = records_events
        self._compute_events: list[Event] = []
        self._stage = _Stage.OUTSIDE
        self._now_s: Array = np.zeros(model.world_size)
        self._factors: Array = np.ones(model.world_size)
        self._backward_began_s = self._now_s
        self._is_checking = False
        self._checked_s = self._now_s
        self._lane = 0
        self._background: Mark | None = None

    @property
    def time_s(self) -> Array:
        """`[N]`: each worker's compute clock."""
        return self._now_s

    @property
    def bytes_sent(self) -> Array:
        """`[N]`: on the wire, headers included and acknowledgements left out."""
        return self._lanes.bytes_sent

    @property
    def longest(self) -> tuple[float, str]:
        """For how long a worker was in an operation at the most, from when it came to it until its
        end, seconds, and the operation's name. Delays by operations that begin later are left out.
        """
        return self._lanes.longest

    @property
    def events(self) -> list[Event]:
        """All that happened, if it is recorded."""
        return [*self._compute_events, *self._lanes.events]

    @property
    def links_free_s(self) -> Array:
        """`[lanes, links]`: when all that was sent so far is off each link, for `go_on`."""
        return self._lanes.links_free_s

    @property
    def is_at_rest(self) -> bool:
        """Whether all workers are at the same time, between two steps, and nothing is on the links:
        a step that comes again takes as long as it took then, where TCP's windows are the same.
        """
        now_s = float(self._now_s.max())
        is_together = bool((self._now_s == now_s).all())
        return is_together and bool((self._lanes.links_free_s <= now_s).all())

    def go_on(
        self, num_steps: int, time_s: Array | float, links_free_s: Array | None = None
    ) -> None:
        """Take up a training after `num_steps` steps, its workers' clocks at `time_s`, `[N]` or one
        for all: from here on steps vary, and the network is, as if it had not been interrupted. Its
        `links_free_s` tell what is still on the links; None, or of other links: nothing.

        The windows of TCP's connections begin anew.
        """
        assert self._stage == _Stage.OUTSIDE, "end_step() comes first"
        self.num_steps = num_steps
        self._now_s = np.broadcast_to(np.asarray(time_s, dtype=float), self._now_s.shape).copy()
        if links_free_s is not None:
            self._lanes.links_free_s = links_free_s

    def begin_step(self, factors: Array | None = None) -> None:
        """Forward begins, each worker's compute as much slower as `factors` say, by default as the
        variation does; 0 stands still. Raises `ValueError` if a trace of compute times is over.
        """
        assert self._stage == _Stage.OUTSIDE, "end_step() comes first"
        self._end_background()
        if factors is None:
            factors = self.compute.variation.factors(self.num_steps, len(self._now_s))
        self._factors = factors
        self._begin_s = self._now_s
        self._host_before_s = self._lanes.host_s
        self._operating_before_s = self._lanes.operating_s.copy()
        self._kernels_before_s = self._lanes.kernels_s.copy()
        self._stage = _Stage.FORWARD
        self._lane = 0

    def begin_job(self, moment: Moment, bucket: int | None = None) -> None:
        """The operations and kernels that follow are of this job, on the lane that is its own.

        Jobs come in the order of their moments, and of their buckets.
        """
        assert self._stage != _Stage.OUTSIDE, "begin_step() comes first"
        self._end_background()
        self._end_check()
        self._reach(_STAGES[moment])
        if moment == "bucket_ready":
            assert bucket is not None
            self._come_to(self.compute.ready_s(bucket))
        elif moment == "overflow_check":
            self._come_to(self.compute.backward_s)
            self._is_checking = True
        self._begin(0 if bucket is None else bucket % self._num_lanes)

    def begin_background(self) -> Mark:
        """Begin a round beside training at each worker's compute clock, up to the next job;
        training does not wait for it.
        """
        self._end_background()
        self._begin(self._num_lanes)
        self._background = Mark()
        return self._background

    def on_operation(self, operation: CostedOperation) -> None:
        """Put the operation on the job's lane; outside a step, all workers wait for its end."""
        is_setup = self._stage == _Stage.OUTSIDE and self._background is None
        if is_setup:
            self._begin(0)
        self._lanes.put(self._lane, operation)
        if is_setup:
            self._join()

    def kernel(self, seconds: float) -> None:
        """The job computes for so long on a worker of factor 1."""
        self._lanes.put(self._lane, Kernel(seconds * self._factors))

    def do(self, work: Iterable[CostedOperation | float]) -> None:
        """The work of a job: operations, and seconds of kernels."""
        for item in work:
            if isinstance(item, int | float):
                self.kernel(item)
            else:
                self.on_operation(item)

    def barrier(self) -> None:
        """All workers wait for the slowest; outside a step."""
        assert self._stage == _Stage.OUTSIDE, "end_step() comes first"
        self._now_s = np.full_like(self._now_s, self._now_s.max())

    def is_done(self, background: Mark) -> NDArray[np.bool_]:
        """`[N]`: whether a round is over at each worker's compute clock.

        What has been reported so far happens for it; links are shared as if nothing followed.
        """
        return self._end_of(background) <= self._now_s

    def wait(self, background: Mark) -> None:
        """Compute waits until a round is over."""
        self._wait_until(self._end_of(background))

    def end_step(self) -> None:
        """All is waited for, background rounds apart, and the next step can begin."""
        self._end_background()
        self._end_check()
        self._reach(_Stage.STEP_END)
        self._join()
        moving_s = self._lanes.host_s - self._host_before_s
        if moving_s:
            self._wait_until(self._begin_s + self._least_s(moving_s))
        self._stage = _Stage.OUTSIDE
        self._begin(0)
        self.num_steps += 1

    def replay(self, jobs: Iterable[TimelineJob]) -> None:
        """One whole step of known jobs."""
        self.begin_step()
        for job in jobs:
            self.begin_job(job.moment, job.bucket)
            self.do(job.work)
        self.end_step()

    def _least_s(self, moving_s: float) -> Array:
        """What a step takes at least on a host that all workers share, `[N]`: its processors do
        all of the work, and threads wait for them. A switch carries messages in turn, and
        operations have this wait in their own time.
        """
        before_s = self._operating_before_s, self._kernels_before_s
        now_s = self._lanes.operating_s, self._lanes.kernels_s
        operating_s, kernels_s = (
            (now - before)[: self._num_lanes] for now, before in zip(now_s, before_s, strict=True)
        )
        optimizer_s = self.compute.optimizer_s * self._factors
        passes_s = (self.compute.forward_s + self.compute.backward_s) * self._factors
        beside_s = passes_s + kernels_s.sum()
        busy_s = moving_s + self._host_load * (beside_s + optimizer_s)
        if not self._has_switch:
            beside_s = beside_s + moving_s
        in_turn_s = (operating_s + kernels_s).max() + optimizer_s
        return np.maximum(busy_s, in_turn_s + self._host_wait * beside_s)

    def _begin(self, lane: int) -> None:
        self._lane = lane
        self._lanes.put(lane, Ready(self._now_s))

    def _come_to(self, seconds: float) -> None:
        """Compute is so far in its backward pass, or waits for the overflow check."""
        at_s = self._backward_began_s + self._factors * seconds
        self._now_s = np.maximum(at_s, self._checked_s)

    def _end_check(self) -> None:
        if self._is_checking:
            self._is_checking = False
            self._join()
            self._checked_s = self._now_s

    def _end_background(self) -> None:
        if self._background is not None:
            self._lanes.put(self._num_lanes, self._background)
            self._background = None

    def _end_of(self, background: Mark) -> Array:
        if background is self._background:
            self._end_background()
            self._begin(0)
        self._lanes.run()
        assert background.end_s is not None
        return background.end_s

    def _reach(self, stage: _Stage) -> None:
        """Let compute go on to a stage; it never goes back."""
        assert stage >= self._stage, f"{stage.name} comes before {self._stage.name}"
        while self._stage < stage:
            self._stage = _Stage(self._stage + 1)
            if self._stage == _Stage.BACKWARD:
                warm_up_s = self.compute.warm_up_s if self.num_steps == 0 else 0.0
                self._pass("forward", self.compute.forward_s + warm_up_s)
                self._backward_began_s = self._now_s
            elif self._stage == _Stage.BACKWARD_END:
                self._now_s = self._backward_began_s
                self._pass("backward", self.compute.backward_s)
                self._now_s = np.maximum(self._now_s, self._checked_s)
                self._join()
            elif self._stage == _Stage.STEP_END:
                self._join()
                self._pass("optimizer", self.compute.optimizer_s)

    def _pass(self, name: str, seconds: float) -> None:
        before_s = self._now_s
        self._now_s = before_s + seconds * self._factors
        self._record(name, before_s)

    def _record(self, name: str, before_s: Array) -> None:
        """What compute did until now, of the workers for whom it took time."""
        if self._records_events:
            who = np.flatnonzero(self._now_s > before_s)
            self._compute_events += spans(-1, name, who, before_s[who], self._now_s[who])

    def _join(self) -> None:
        """Compute waits for all lanes but the background."""
        self._lanes.run()
        latest_s = np.max([self._lanes.times_s(lane) for lane in range(self._num_lanes)], axis=0)
        for lane in range(self._num_lanes):
            self._lanes.settle(lane)
        self._wait_until(latest_s)

    def _wait_until(self, end_s: Array) -> None:
        before_s, self._now_s = self._now_s, np.maximum(self._now_s, end_s)
        if self._stage != _Stage.OUTSIDE:
            self.exposed_communication_s += self._now_s - before_s
            self._record("wait", before_s)
