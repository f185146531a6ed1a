"""Asynchronous model averaging: workers train alone, and weights are averaged in the background.

    s_i = x_i                    a worker's weights at the end of a step, `interval_ms` after the
                                 last time
    r   = mean_j s_j             in the background, once all have begun the round
    x_i <- x_i + r - s_i         at the end of the first step after that

Compute never waits: a worker's updates since s_i survive, and a slow or silent worker delays the
averages of the others, not their steps. In the first `warmup_steps` steps gradients are
all-reduced.

Paper: Gan et al., "BAGUA", arXiv 2107.01499, section 3.4 (asynchronous model averaging). Differs
from the paper: nothing in the rule. Differs from its code: weights change only at the end of a
step, so nobody reads a half-written average; a pause (a script's consensus, a checkpoint, the end)
ends the background by itself, however many rounds each worker has begun; a worker that stops does
not stop the others.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.checkpoint import kept
from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import all_reduce_mean_
from bagua_algos.communication.threads.at_exit import WORD_S
from bagua_algos.communication.threads.job_thread import LEAVE_S
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.background import Background
from bagua_algos.engine.bucket import Bucket
from bagua_algos.settings import check_whole


@kept
@dataclass(kw_only=True)
class AsyncState:
    """The round that each worker has begun last.

    `in_flight` bool `[w]`: begun and not yet taken up; `began_s` float64 `[w]`: when, NaN before
    the first; `num_rounds` int64 `[w]`. One tensor a bucket, `[w, n]`: `snapshots` (s),
    `corrections` (r - s).
    """

    in_flight: Tensor
    began_s: Tensor
    num_rounds: Tensor
    snapshots: list[Tensor]
    corrections: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class AsyncModelAverage(Hierarchical):
    """Averages weights in the background. A round begins `interval_ms` after the one before began,
    or later.

    State: an `AsyncState`.

    Args:
        interval_ms: from the beginning of one round to that of the next, at least, in
            milliseconds.
        warmup_steps: the first steps, in which gradients are all-reduced instead.

    Raises:
        ValueError: a negative interval; a number of warm-up steps that is not whole or negative.
    """

    family: ClassVar[str] = "asynchronous"
    workers_agree: ClassVar[bool] = False
    depends_on_timing: ClassVar[bool] = True
    uses_background: ClassVar[bool] = True

    interval_ms: float = 500.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.interval_ms < math.inf:
            raise ValueError(f"interval_ms must be at least 0 and finite, got {self.interval_ms}")
        check_whole("warmup_steps", self.warmup_steps, least=0)

    @property
    def num_early_steps(self) -> int:
        """The number of warm-up steps, which all-reduce gradients."""
        return self.warmup_steps

    def meets_in_backward(self, step: int) -> bool:
        """Only during warm-up."""
        return step < self.warmup_steps

    def check_shards(self) -> None:
        """Raise `ValueError`: when an average is taken up, each process decides by its clock."""
        raise ValueError(
            "AsyncModelAverage would take up the averages of one replica's shards at different "
            "steps: choose LocalSGD, which averages as seldom and at the same step"
        )

    def init(self, context: Context) -> AsyncState:
        """No round has begun. `ValueError` for hierarchical rounds where nodes are unknown."""
        levels(context.communicator, self.hierarchical)
        num_held = len(context.communicator.ranks)
        background = _background(context)
        background.at_end(lambda: _leave(background), lambda until_s: _end(background, until_s))
        return AsyncState(
            in_flight=torch.zeros(num_held, dtype=torch.bool, device="cpu"),
            began_s=torch.full((num_held,), math.nan, dtype=torch.float64, device="cpu"),
            num_rounds=torch.zeros(num_held, dtype=torch.int64, device="cpu"),
            snapshots=[torch.zeros_like(bucket.weights) for bucket in context.buckets],
            corrections=[torch.zeros_like(bucket.weights) for bucket in context.buckets],
        )

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients during warm-up."""
        if context.step < self.warmup_steps:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)

    def on_step_end(self, context: Context) -> None:
        """Take up the average that has arrived, and begin the next round if it is time."""
        state: AsyncState = context.state
        background = _background(context)
        background.num_steps = context.step + 1
        if context.step < self.warmup_steps or background.is_given_up:
            return
        done_w = background.done_w()  # first: what fails from here on does not count as done
        if background.failure is not None:
            _give_up(background, _left(background, within_s=WORD_S))
            return
        _take_up(context, state.in_flight & done_w)
        if _is_deserted(background, is_in_flight=bool(state.in_flight.any())):
            _give_up(background, _left(background))
            return
        now_s = background.now_w()
        # Not begun yet, or by another process's clock, before a checkpoint.
        is_unknown = state.began_s.isnan() | (state.began_s > now_s)
        state.began_s = torch.where(is_unknown, now_s, state.began_s)
        is_due = now_s - state.began_s >= self.interval_ms / 1e3
        self._begin(context, ~state.in_flight & is_due)

    def on_pause(self, context: Context) -> None:
        """Let every worker begin as many rounds as the furthest one has, and take up the last."""
        state: AsyncState = context.state
        background = _background(context)
        if background.failure is not None:
            raise background.failure
        if background.is_given_up:
            raise CommunicationError(_farewell(background, _left(background)))
        most = _most_rounds(context)
        is_behind = state.num_rounds < most
        if (state.in_flight & is_behind).any():
            background.wait()
        _take_up(context, state.in_flight & is_behind)
        self._begin(context, is_behind)
        background.wait()
        _take_up(context, state.in_flight)

    def _begin(self, context: Context, workers: Tensor) -> None:
        """Take the snapshots of `workers`; the round starts when all held here have begun it."""
        if not workers.any():
            return
        state: AsyncState = context.state
        state.began_s = torch.where(workers, _background(context).now_w(), state.began_s)
        state.num_rounds += workers
        state.in_flight |= workers
        rows = _rows(workers)
        for bucket, snapshot in zip(context.buckets, state.snapshots, strict=True):
            snapshot[rows] = bucket.weights[rows]
        _background(context).begin(
            workers, "a round of averaging", lambda: _average(context, self.hierarchical)
        )


def _most_rounds(context: Context) -> Tensor:
    """The rounds that the furthest worker has begun; `CommunicationError` names who has ended."""
    rounds_w = context.state.num_rounds.unsqueeze(1).to(context.buckets[0].weights.device)
    try:
        return context.communicator.all_gather(rounds_w).max().cpu()  # NCCL: on a GPU
    except CommunicationError as error:
        left = _left(_background(context), within_s=WORD_S)
        if not left:
            raise
        raise CommunicationError(f"{_named(left)}; {error}") from error


_Left = Mapping[int, int | None]
"""Workers that have ended, and after how many steps, if that is known."""


def _left(background: Background, *, within_s: float = 0.0) -> _Left:
    departures = background.departures
    return {} if departures is None else departures.known(within_s=within_s)


def _is_deserted(background: Background, *, is_in_flight: bool) -> bool:
    """Whether another worker has ended, so that there will be no round any more. The one that is in
    flight may still be completed, since a worker that ends stays `LEAVE_S` for it.
    """
    departures = background.departures
    if departures is None or not departures.lately_known():
        return False
    return not is_in_flight or departures.known_for_s > LEAVE_S + WORD_S


def _named(left: _Left) -> str:
    return "; ".join(
        f"worker {rank} has ended" + (f" after {steps} steps" if steps is not None else "")
        for rank, steps in left.items()
    )


def _farewell(background: Background, left: _Left) -> str:
    failure = [] if background.failure is None else [str(background.failure)]
    return (
        "averaging has ended, and each worker trains on alone: "
        f"{'; '.join([*filter(None, [_named(left)]), *failure])}; "
        "workers that are to end together call bagua_algos.release(model), each after as many "
        "steps as it likes"
    )


def _give_up(background: Background, left: _Left) -> None:
    background.is_given_up = True
    warnings.warn(_farewell(background, left), stacklevel=3)


def _leave(background: Background) -> None:
    """The process ends without `release`: those who stay are to hear of it at once. Of two workers,
    one at least hears of the other: each leaves word before it asks.
    """
    if background.departures is None:
        return
    background.departures.leave(background.num_steps)
    uneven = {r: n for r, n in _left(background).items() if n != background.num_steps}
    if uneven and not background.is_given_up:
        _give_up(background, uneven)


def _end(background: Background, until_s: float) -> None:
    """The process is about to end: warn of those who left before."""
    if background.departures is None:
        return
    has_failed = background.failure is not None
    left = _left(background, within_s=WORD_S if has_failed else 0.0)
    early = {r: n for r, n in left.items() if n is None or n < background.num_steps}
    if not background.is_given_up and (has_failed or early):
        _give_up(background, early or left)
    background.departures.wait_for_the_others(until_s)


def _average(context: Context, hierarchical: bool) -> None:
    communicator = _background(context).communicator
    for snapshot, correction in zip(
        context.state.snapshots, context.state.corrections, strict=True
    ):
        correction.copy_(snapshot)
        all_reduce_mean_(correction, communicator, hierarchical)
        correction.sub_(snapshot)


def _take_up(context: Context, workers: Tensor) -> None:
    if not workers.any():
        return
    state: AsyncState = context.state
    rows = _rows(workers)
    for bucket, correction in zip(context.buckets, state.corrections, strict=True):
        bucket.weights[rows] += correction[rows]
    state.in_flight &= ~workers


def _rows(workers: Tensor) -> Tensor | slice:
    """The index of the workers of bool `[w]`. All workers, such as a real worker alone, are a
    slice: with an index on the host, a GPU would make the host wait.
    """
    return slice(None) if workers.all() else workers


def _background(context: Context) -> Background:
    assert context.background is not None, "the engine makes it for algorithms that use it"
    return context.background
