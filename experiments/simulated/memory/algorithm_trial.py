"""What an algorithm and its optimizer take of memory: found by steps of all workers on few weights.

An algorithm may keep error feedback, replicas of neighbours or the weights of the last round, and
make copies where it acts. No list here says which: one that a user wrote is tried like the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import ceil, prod
from typing import Any, NamedTuple, cast
from warnings import catch_warnings, simplefilter

import torch
from torch import nn

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Context, acts_at
from bagua_algos.engine.background import Background
from bagua_algos.engine.bucket import Bucket, build_buckets, grouped
from bagua_algos.engine.lane import CommunicationLane
from bagua_algos.fused.fuse import fuse_in
from experiments.plan.plan import Plan
from experiments.simulated.memory.live_bytes import LiveBytes
from host.processes import ChildError, run_in_child

_ELEMENTS = 1 << 18
"""Of all workers' weights together, where that is enough."""

_LEAST_OF_BUCKET = 64
"""Of each worker in a bucket, times the workers, so that its padding is a small part."""

_MOST_ELEMENTS = 1 << 26
"""Of all workers together: of thousands more padding is counted than there is."""

_LIMIT_S = 120
"""Of all trials: where an algorithm hangs, training says so."""


class Taken(NamedTuple):
    """Bytes of all workers, for the weights that are trained."""

    between_steps: int
    """Weights, gradients, and what optimizer and algorithm keep."""
    in_passes: int
    """These, and what travels while gradients are computed."""
    at_most: int
    """With what optimizer and algorithm make where they act, or where training begins or ends."""


def taken_by(plans: Sequence[Plan]) -> Taken:
    """The most that the steps of any of `plans` take, which differ in their algorithms alone.

    In a child: what an algorithm of a user's own keeps elsewhere than in its state is gone then.
    Where one fails, for which training gives the reason, weights and gradients count alone.
    """
    try:
        tried = run_in_child(
            lambda: [_try_or_guess(plan) for plan in plans],
            doing="trying what an algorithm keeps",
            limit_s=_LIMIT_S,
        )
    except ChildError:
        tried = [_guess(plan) for plan in plans]
    return Taken(*map(max, zip(*tried, strict=True)))


def _try_or_guess(plan: Plan) -> Taken:
    try:
        return try_algorithm(plan)
    except Exception:
        return _guess(plan)


def _guess(plan: Plan) -> Taken:
    weights = plan.workers * trained_bytes(plan)
    return Taken(between_steps=2 * weights, in_passes=2 * weights, at_most=3 * weights)


def try_algorithm(plan: Plan) -> Taken:
    """What the steps of `plan` take, beside passes and frozen weights. To be called in a process
    that does nothing else.
    """
    communicator = StackedCommunicator(plan.workers, clock=_late_clock(), nodes=plan.nodes)
    trained = _trained(plan)
    share = _share(plan, trained)
    shapes = [_cut(p.shape, share) for p in trained]
    torch.set_num_threads(1)
    live = LiveBytes()
    with catch_warnings():
        simplefilter("ignore")  # training gives the same warnings
        with live:
            trial = _Trial(
                [
                    nn.Parameter(torch.zeros(plan.workers, *shape, dtype=p.dtype))
                    for shape, p in zip(shapes, trained, strict=True)
                ],
                plan,
                communicator,
                bucket_bytes=ceil(share * plan.bucket_bytes),
            )
        trial.fuse()
        with live:
            trial.take(_steps(plan), live)
    tried = sum(prod(shape) * p.itemsize for shape, p in zip(shapes, trained, strict=True))
    factor = trained_bytes(plan) / tried
    return Taken(
        between_steps=round(factor * trial.between_steps),
        in_passes=round(factor * trial.in_passes),
        at_most=round(factor * live.most),
    )


def _trained(plan: Plan) -> list[nn.Parameter]:
    return [p for p in plan.model.parameters() if p.requires_grad]


def trained_bytes(plan: Plan) -> int:
    """Of one worker's weights that are trained."""
    return sum(p.nbytes for p in _trained(plan))


def _late_clock() -> Callable[[], float]:
    """By which all that an algorithm does at intervals is due, whenever it looks."""
    return map(float, count(step=10**9)).__next__


def _share(plan: Plan, trained: Sequence[nn.Parameter]) -> float:
    """Which part of every parameter is tried."""
    buckets = grouped(reversed(trained), num_held=1, bucket_bytes=plan.bucket_bytes)
    enough = max(_ELEMENTS, _LEAST_OF_BUCKET * plan.workers**2 * len(buckets))
    all_of_them = plan.workers * sum(p.numel() for p in trained)
    return min(1.0, min(enough, _MOST_ELEMENTS) / all_of_them)


def _cut(shape: Sequence[int], share: float) -> tuple[int, ...]:
    """Fewer rows of a matrix, since a code or a factor may be of whole columns."""
    return tuple(ceil(share * n) if axis == 0 else n for axis, n in enumerate(shape))


def _steps(plan: Plan) -> list[int]:
    """Those that may differ: the first, those around the end of the early ones, and those around
    the end of the first round after these.
    """
    early = plan.algorithm.num_early_steps
    end = early + plan.algorithm.steps_per_round
    steps = {0, early - 1, early, end - 1, end}
    return sorted(step for step in steps if 0 <= step < max(1, plan.max_steps))


class _Trial:
    """An algorithm on stacked weights, that acts on this thread alone, which is counted."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: Plan,
        communicator: Communicator,
        *,
        bucket_bytes: int,
    ) -> None:
        self.between_steps = 0
        """The most bytes of tensors after a step."""
        self.in_passes = 0
        """The most bytes of tensors when a backward pass begins."""
        algorithm = plan.algorithm
        buckets = build_buckets(
            parameters,
            num_held=plan.workers,
            world_size=plan.workers,
            bucket_bytes=bucket_bytes,
        )
        optimizer = plan.make_optimizer(parameters)
        algorithm.load("cpu")
        lane = cast(CommunicationLane, _AtOnce(communicator))
        self._context = Context(
            buckets=buckets,
            communicator=communicator,
            optimizer=optimizer,
            background=Background(lane) if algorithm.uses_background else None,
        )
        self._algorithm = algorithm
        self._change(state=algorithm.init(self._context))

    def fuse(self) -> None:
        """As an engine does. To see whether it may takes memory that no weights are in."""
        agree, context = self._algorithm.gradients_agree, self._context
        fuse_in(context.buckets, context.optimizer, agree=agree)

    def take(self, steps: Sequence[int], live: LiveBytes) -> None:
        """Take these steps, and end."""
        for step in steps:
            if step != self._context.step:
                self._change(step=step)
                self._algorithm.skip_to(self._context)
            self._act("on_forward")
            self.in_passes = max(self.in_passes, live.now)
            self._end_step()
            self.between_steps = max(self.between_steps, live.now)
        self.in_passes = max(self.in_passes, self.between_steps)  # in the next one
        self._act("on_pause")
        self._algorithm.on_close(self._context)

    def _end_step(self) -> None:
        for bucket in self._context.buckets:
            bucket.gradients.fill_(1)
            bucket.place_gradients()
            self._act("on_bucket_ready", bucket)
        for moment in ("on_backward_end", "on_step_begin"):
            self._act(moment)
        self._context.optimizer.step()
        self._act("on_step_end")
        self._change(step=self._context.step + 1)

    def _act(self, moment: str, *bucket: Bucket) -> None:
        if acts_at(self._algorithm, moment):
            getattr(self._algorithm, moment)(self._context, *bucket)

    def _change(self, **changes: Any) -> None:
        self._context = replace(self._context, **changes)


class _AtOnce:
    """A lane without a thread: what a `Background` asks of one."""

    failure: BaseException | None = None
    is_idle = True

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def submit(self, label: str, job: Callable[[], None]) -> None:
        """Do it."""
        job()

    def wait(self) -> None:
        """All is done."""

    def at_end(self, before: Callable[[], None], after: Callable[[float], None]) -> None:
        """Nothing is under way when the process ends."""
