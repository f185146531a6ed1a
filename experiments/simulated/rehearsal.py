"""Measures a worker's own work: its training steps with an echo in place of the other workers.

As many processes rehearse at once as workers will share the device, so that they take from each
other what they will take in the run. An echo waits for the other processes where a real operation
would wait for the other workers: so the one that is late holds up all, as in the run. No network is
involved, and no run of the one to be predicted. On a GPU the host waits for the end of each phase.
"""

import math
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import Barrier, Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ConstantLR

from bagua_algos.communication.communicator import Operation
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel
from experiments.plan.plan import Plan
from experiments.simulated.lengths import by_places, places
from experiments.simulated.profile import JobKernels, Profile, setting_of
from experiments.tasks.base import TaskData
from experiments.training.step import Step, make_step
from host.environment import cpu_model
from host.errors import Failure
from host.forks.channel import ParentChannel, told
from host.gpus import placement
from host.processes import end_of, fork, schedule_as_batch

WARM_UP_STEPS = 5
REHEARSED_S = 0.5
"""For how long steps are taken, at least."""
LIMIT_S = 120
NUM_ROUNDS = 2
"""Of an algorithm that repeats its work after many steps: so many are rehearsed, at least."""
NUM_TOLD = 10
"""Parts of a rehearsal whose ends are told, so that the time it takes can be foreseen."""

NUM_CONNECTIONS = 4
"""At least as many as an engine has lanes, the background's included."""


def rehearse(
    plan: Plan,
    data: TaskData,
    *,
    sharing: int,
    num_steps: int = 40,
    seconds: float = REHEARSED_S,
    tell: Callable[[], None] = lambda: None,
) -> Profile:
    """Measure steps of one worker of `plan`, `sharing` of them at once: so many, and for so long.

    An algorithm whose early steps do other work takes its part of `num_steps` for these, then skips
    to later ones; one that repeats its work after many steps skips to the ends of its rounds.
    `tell` is called whenever another of `NUM_TOLD` equal parts of it is over.

    To be called before torch has started threads here, or used a GPU, since it forks. Raises
    `Failure` where a process dies or takes too long, `UserError` where there is no GPU for it.
    """
    if plan.backend.device == "cuda":
        placement(sharing)  # raises
    channels = [Pipe(duplex=False) for _ in range(sharing)]
    barriers = [Barrier(sharing, timeout=LIMIT_S) for _ in range(NUM_CONNECTIONS)]
    args = num_steps, seconds, [barrier.wait for barrier in barriers]
    children = [
        fork(partial(told, own := ParentChannel(end), partial(_run, plan, data, *args, own)))
        for _, end in channels
    ]
    for _, theirs in channels:
        theirs.close()
    try:
        profiles = [
            _received(ours, worker, children, tell if worker == 0 else lambda: None)
            for worker, (ours, _) in enumerate(channels)
        ]
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return _typical(profiles, sharing)


def _received(
    ours: Connection, worker: int, children: list[int], tell: Callable[[], None]
) -> Profile:
    """What a worker has measured, which has told before how far it has come."""
    while True:
        if not wait([ours], LIMIT_S):
            raise Failure(f"rehearsing worker {worker} has not come further within {LIMIT_S} s")
        try:
            message = ours.recv()
        except EOFError as error:
            raise Failure(f"rehearsing worker {worker} {end_of(children.pop(worker))}") from error
        if isinstance(message, Exception):
            raise message
        if message is not None:
            return message
        tell()


def _run(
    plan: Plan,
    data: TaskData,
    num_steps: int,
    seconds: float,
    meet: Sequence[Callable[[], object]],
    launcher: ParentChannel,
) -> int:
    schedule_as_batch()  # as real workers are
    torch.set_num_threads(plan.cluster.threads_per_worker)
    stopwatch = _Stopwatch(_gpu_clock if plan.backend.device == "cuda" else time.perf_counter)
    communicator = LoopbackCommunicator(plan.workers, stopwatch, nodes=plan.nodes, meet=meet)
    model = SingleModel(plan.model.to(plan.backend.device))
    optimizer = plan.make_optimizer(model.parameters())
    take_step = make_step(plan, data.train, model, optimizer, communicator, stopwatch)
    _hold_rates(take_step)
    engine = take_step.distributed
    assert isinstance(engine, Engine), "PyTorch's own are not simulated"
    batches = plan.batches(data, (0,))
    step, num_told, until_s = 0, 0, -math.inf
    take_step.read_ahead(batches, 0)
    lengths, places_s = plan.task.lengths(data.train), []
    while (share := _share(step / (WARM_UP_STEPS + num_steps), until_s, seconds)) < 1:
        while num_told < math.floor(NUM_TOLD * share):
            launcher.send(None)
            num_told += 1
        if step == WARM_UP_STEPS:
            until_s = time.monotonic() + seconds
        least = _least_step(step, engine.algorithm, plan.max_steps, num_steps)
        if least > engine.context.step:
            engine.skip_to(least)
        if stopwatch.time(take_step, batches.indices(step), is_warm=step >= WARM_UP_STEPS):
            places_s += places(batches.indices(step), lengths, plan.accumulate).tolist()
        step += 1
    profile = stopwatch.profile(setting_of(plan, data), _device_name(plan))
    if plan.loading.sampler.crop:
        profile = by_places(profile, places_s, stopwatch.compute_s)
    for message in [None] * (NUM_TOLD - num_told) + [profile]:
        launcher.send(message)
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:  # until it is killed: the others still rehearse
        take_step(batches.indices(0))
    return 0


def _hold_rates(take_step: Step) -> None:
    """Keep the learning rates that the run begins with, which are no part of a time. A rehearsal
    may be longer than the run: there a schedule may be over, or have come to 0, by which SlowMo
    divides. In place of 0 at the beginning it is a hundredth of the optimizer's rate.
    """
    take_step.schedule = ConstantLR(take_step.optimizer, factor=1.0, total_iters=0)
    for group in take_step.optimizer.param_groups:
        group["lr"] = group["lr"] or 0.01 * group["initial_lr"]


def _share(of_steps: float, until_s: float, seconds: float) -> float:
    """The part of a rehearsal that is over: of its steps, and of its `seconds`, which end at
    `until_s`.
    """
    left_s = until_s - time.monotonic()
    return min(of_steps, 1.0 if left_s <= 0 else 1 - left_s / seconds)


def _least_step(step: int, algorithm: Algorithm, max_steps: int, num_steps: int) -> int:
    """Which of a training's steps is rehearsed as number `step`, or an earlier one than it has come
    to: after their part of the rehearsal the early ones are over. Where later ones are too few to
    see `NUM_ROUNDS` rounds, they are those around the ends of so many.
    """
    early_steps = min(algorithm.num_early_steps, max_steps)
    num_early = WARM_UP_STEPS + math.ceil(num_steps * early_steps / max_steps)
    if step < num_early:
        return 0
    of_round = max(2, (WARM_UP_STEPS + num_steps - num_early) // NUM_ROUNDS)
    if algorithm.steps_per_round <= of_round:
        return early_steps
    num_rounds, within = divmod(step - num_early, of_round)
    end = early_steps + (num_rounds + 1) * algorithm.steps_per_round
    return end - of_round // 2 + within


def _device_name(plan: Plan) -> str:
    return str(cpu_model()) if plan.backend.device == "cpu" else torch.cuda.get_device_name()


def _gpu_clock() -> float:
    """The time when the GPU has done what the calling thread has enqueued."""
    torch.cuda.current_stream().synchronize()
    return time.perf_counter()


_OF_LAST_PART = ("on_step_begin", "on_step_end")
"""The moments between a step's synchronization and its end."""


class _Stopwatch:
    """A `StepObserver` and communication observer that takes every phase's time, by `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._phases: dict[str, list[float]] = defaultdict(list)
        self._warm_up_s: list[float] = []
        self._ready: dict[int, list[float]] = defaultdict(list)
        self._jobs: dict[tuple[str, int | None, int], list[list[float]]] = defaultdict(list)
        self._lane = _Lane(clock)

    def time(self, take_step: Step, indices_wb: np.ndarray, *, is_warm: bool) -> bool:
        """Take a step; whether it counts: it is not one of warming up, and none of its gradients
        has overflowed, so that the optimizer has taken it.
        """
        scale = take_step.scaler.get_scale()
        self.begin()
        take_step(indices_wb)
        has_overflowed = take_step.scaler.get_scale() < scale
        if not (is_warm and has_overflowed):
            self.end(is_counted=is_warm)
        return is_warm and not has_overflowed

    def begin(self) -> None:
        """A step begins."""
        self._times = {"begin": self._clock()}
        self._step_ready: dict[int, float] = {}
        self._step_jobs: list[_TimedJob] = []

    def end(self, *, is_counted: bool) -> None:
        """The step has ended; one of warming up is not counted."""
        ended_s, t = self._clock(), self._times
        if not is_counted:
            self._warm_up_s.append(ended_s - t["begin"])
            return
        of_lanes = [job for job in self._step_jobs if not job.is_optimizers]
        last_s = sum(job.duration_s for job in of_lanes if job.moment in _OF_LAST_PART)
        phases = {
            "forward": t["forward_end"] - t["begin"],
            "backward": t["backward_end"] - t["forward_end"],
            "optimizer": ended_s - t["synchronized"] - last_s,
        }
        exposed_s = sum(job.kernels_after_s(t["backward_end"]) for job in of_lanes)
        phases["late"] = ended_s - t["begin"] - sum(phases.values()) - exposed_s
        phases["step"] = ended_s - t["begin"]
        for name, seconds in phases.items():
            self._phases[name].append(seconds)
        for bucket, ready_s in self._step_ready.items():
            self._ready[bucket].append(ready_s - t["forward_end"])
        for job in self._step_jobs:
            kernels_s = [end_s - start_s for start_s, end_s in job.kernels]
            self._jobs[job.moment, job.bucket, len(kernels_s) - 1].append(kernels_s)

    def profile(self, setting: dict[str, Any], device: str) -> Profile:
        """The means of all counted steps: a run takes the sum of them, the slow ones included."""
        if not self._phases:
            raise Failure(
                "gradients overflow in every step that is rehearsed: take precision=bfloat16, or a "
                "lower lr_scale"
            )
        usual_s = len(self._warm_up_s) * statistics.mean(self._phases["step"])
        return Profile(
            device=device,
            sharing=1,
            setting=setting,
            forward_s=statistics.mean(self._phases["forward"]),
            late_s=max(0.0, statistics.mean(self._phases["late"])),
            ready_s=tuple(statistics.mean(self._ready[k]) for k in sorted(self._ready)),
            backward_s=statistics.mean(self._phases["backward"]),
            optimizer_s=statistics.mean(self._phases["optimizer"]),
            jobs=tuple(
                JobKernels(moment=moment, bucket=bucket, kernels_s=_means(kernels))
                for (moment, bucket, _), kernels in self._jobs.items()
            ),
            warm_up_s=max(0.0, sum(self._warm_up_s) - usual_s),
        )

    @property
    def compute_s(self) -> list[float]:
        """Of every counted step, what is longer for longer batches."""
        phases = (self._phases[name] for name in ("forward", "backward", "optimizer"))
        return [sum(step) for step in zip(*phases, strict=True)]

    def on_forward(self) -> None:
        pass

    def on_forward_end(self) -> None:
        self._times.setdefault("forward_end", self._clock())

    def on_submit(self, moment: str, bucket: int | None) -> None:
        if bucket is not None:
            self._step_ready[bucket] = self._clock()

    def on_job(self, moment: str, bucket: int | None) -> None:
        self._lane.job = _TimedJob(moment, bucket, self._clock)

    def on_operation(self, operation: Operation) -> None:
        self._lane.job.lap(waited_s=operation.seconds)

    def on_job_end(self, moment: str, bucket: int | None) -> None:
        self._lane.job.lap()
        self._step_jobs.append(self._lane.job)
        self._lane.job = _TimedJob("", None, self._clock)  # what is not of a job counts nowhere

    def on_backward_end(self) -> None:
        self._times["backward_end"] = self._clock()

    def on_synchronized(self) -> None:
        self._times["synchronized"] = self._clock()

    def on_step_end(self) -> None:
        pass


class _TimedJob:
    """The kernels of a job so far, each from when to when."""

    def __init__(self, moment: str, bucket: int | None, clock: Callable[[], float]) -> None:
        self.moment = moment
        self.bucket = bucket
        self.kernels: list[tuple[float, float]] = []
        self._clock = clock
        self._began_s = self._since_s = clock()

    @property
    def is_optimizers(self) -> bool:
        """Whether its kernels are among the optimizer's: it is of the same moment, and alone."""
        return self.moment == "on_step_begin" and len(self.kernels) == 1

    @property
    def duration_s(self) -> float:
        """Waiting included."""
        return self._since_s - self._began_s

    def kernels_after_s(self, at_s: float) -> float:
        """The seconds of kernels that began after a time."""
        return sum(end_s - start_s for start_s, end_s in self.kernels if start_s >= at_s)

    def lap(self, waited_s: float = 0.0) -> None:
        """A kernel ends now, or ended before an operation that has just waited so long."""
        now_s = self._clock()
        self.kernels.append((self._since_s, now_s - waited_s))
        self._since_s = now_s


class _Lane(threading.local):
    """The job of this thread's lane."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.job = _TimedJob("", None, clock)


def _means(rows: list[list[float]]) -> tuple[float, ...]:
    """Of each column; clocks that are read apart may say a little less than nothing."""
    return tuple(max(0.0, statistics.mean(column)) for column in zip(*rows, strict=True))


def _typical(profiles: list[Profile], sharing: int) -> Profile:
    """The mean of what the workers measured."""
    first = profiles[0]

    def mean(pick):
        return statistics.mean(pick(profile) for profile in profiles)

    return Profile(
        device=first.device,
        sharing=sharing,
        setting=first.setting,
        forward_s=mean(lambda p: p.forward_s),
        late_s=mean(lambda p: p.late_s),
        ready_s=tuple(mean(lambda p, k=k: p.ready_s[k]) for k in range(len(first.ready_s))),
        backward_s=mean(lambda p: p.backward_s),
        optimizer_s=mean(lambda p: p.optimizer_s),
        jobs=tuple(_typical_jobs(job for profile in profiles for job in profile.jobs)),
        warm_up_s=mean(lambda p: p.warm_up_s),
        per_place=mean(lambda p: p.per_place),
        mean_places=mean(lambda p: p.mean_places),
    )


def _typical_jobs(jobs: Iterable[JobKernels]) -> Iterator[JobKernels]:
    """One of each key. Not every worker need have had all: a background round may have been due to
    some.
    """
    alike: dict[tuple[str, int | None, int], list[JobKernels]] = defaultdict(list)
    for job in jobs:
        alike[job.key].append(job)
    for first, *others in alike.values():
        kernels_s = _means([list(job.kernels_s) for job in (first, *others)])
        yield replace(first, kernels_s=kernels_s)
