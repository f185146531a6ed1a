"""In which order sums are made, decided before the first step, while that changes no value yet.

Buckets, streams and pattern can be tuned without another bit where sums have an order of their own
(`direct.py`). Where the network is near, gloo's ring, whose order depends on all three, may be the
faster one: then they stay as they are. So both are timed: all buckets of the model, on the lanes
that they will travel on, without the compute beside them. Only in a fixed order can the number of
streams be tuned, so that order is timed by several streams, too: over a far network both orders are
as slow as each other by one stream, and several are what counts. All workers hear of all times and
decide by one rule.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bagua_algos.autotune.search import WORTH_IT
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.primitives import all_reduce_mean_
from bagua_algos.communication.streams import SEVERAL, connected_when_used
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.engine import Engine

BUDGET_S = 3.0
"""For the turns after the first two, which are made however slow the network is."""
FEWEST_TURNS, MOST_TURNS = 2, 9
CLEAR = 1.5
"""Times as fast: no other turn is needed, and what the search may not find again is worth it."""


@dataclass(frozen=True, kw_only=True)
class OrderTrial:
    """What was measured: the median seconds in which all buckets are averaged, on the slowest
    worker, by the pattern that was given, in a fixed order, and in that by several streams; None
    where there were as many from the start.
    """

    given_s: float
    fixed_s: float
    several_s: float | None = None
    num_turns: int

    @property
    def is_fixed(self) -> bool:
        """Whether sums get a fixed order: not where the pattern given saves more than chance,
        unless several streams are much faster.
        """
        return WORTH_IT * self.fixed_s <= self.given_s or self._several_are_clear

    @property
    def is_clear(self) -> bool:
        """Whether no other turn would change that."""
        slower_s, faster_s = sorted((self.given_s, self.fixed_s), reverse=True)
        return slower_s >= CLEAR * faster_s or self._several_are_clear

    @property
    def _several_are_clear(self) -> bool:
        return self.several_s is not None and CLEAR * self.several_s <= self.given_s


@dataclass(frozen=True, kw_only=True)
class Order:
    """Whether sums have an order that no setting changes; and the trial, if that was measured."""

    is_fixed: bool
    trial: OrderTrial | None = None


def choose_order(engine: Engine) -> Order:
    """Measure where there is a choice, and give the engine's all-reduces what is faster; a
    collective call, before the first step.
    """
    workers, algorithm = engine.context.communicator, engine.algorithm
    largest = max(b.weights.numel() * b.weights.element_size() for b in engine.context.buckets)
    has_choice = (
        workers.world_size > 2  # the sum of two is the same by every pattern
        and not (workers.fixed_order or workers.shares_memory)
        and workers.halving_doubling_bytes < largest
        and (algorithm.all_reduces or algorithm.needs_nodes)
    )
    given = workers.streams  # this may be a lane's own communicator, whose number changes
    trial = try_orders(engine) if has_choice else None
    order = Order(is_fixed=trial is None or trial.is_fixed, trial=trial)
    sum_in(engine, is_fixed=order.is_fixed, streams=given)
    return order


def sum_in(engine: Engine, *, is_fixed: bool, streams: int | None = None) -> None:
    """Give the engine's sums a fixed order, or that of the pattern given, over so many streams, by
    default as many as now; between two steps, the same on all workers.
    """
    workers = engine.context.communicator
    if workers.world_size > 2:
        with connected_when_used():
            engine.dispatcher.use(
                engine.dispatcher.num_used,
                streams=streams or workers.streams,
                halving_doubling_bytes=workers.halving_doubling_bytes,
                fixed_order=is_fixed,
                pieces=workers.pieces,
            )


def try_orders(
    engine: Engine,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> OrderTrial:
    """Time them in turn; a collective call, while all gradients are zero, which they stay."""
    given = engine.context.communicator.streams
    ways = [(False, given), (True, given)]
    if given < SEVERAL:
        ways.append((True, SEVERAL))
        sum_in(engine, is_fixed=True, streams=SEVERAL)
        _average_s(engine, clock)  # which connects them
    started_s, turns = clock(), []
    while True:
        times_s = [0.0] * len(ways)
        order = range(len(ways))
        for way in order if len(turns) % 2 else reversed(order):
            is_fixed, streams = ways[way]
            sum_in(engine, is_fixed=is_fixed, streams=streams)
            times_s[way] = _average_s(engine, clock)
        *times_s, spent_s = slowest(engine, [*times_s, clock() - started_s])
        turns.append(tuple(times_s))
        trial = conclusion(turns)
        if len(turns) == MOST_TURNS or (
            len(turns) >= FEWEST_TURNS and (trial.is_clear or spent_s > budget_s)
        ):
            return trial


def conclusion(turns: Sequence[tuple[float, ...]]) -> OrderTrial:
    """What the seconds of all turns say, of each by the pattern given, in a fixed order, and in
    that by several streams, if these were timed.
    """
    given_s, fixed_s, *several_s = map(statistics.median, zip(*turns, strict=True))
    return OrderTrial(
        given_s=given_s,
        fixed_s=fixed_s,
        several_s=several_s[0] if several_s else None,
        num_turns=len(turns),
    )


def slowest(engine: Engine, numbers: list[float]) -> list[float]:
    """The greatest of all workers' numbers, each by itself; a collective call."""
    workers: Communicator = engine.context.communicator
    every: list[torch.Tensor] = []
    device = engine.context.buckets[0].weights.device
    own_w = torch.tensor([numbers], dtype=torch.float64, device=device)
    engine.dispatcher.run("autotuning", lambda: every.append(workers.all_gather(own_w)))
    return every[0][0].amax(0).tolist()


def _average_s(engine: Engine, clock: Callable[[], float]) -> float:
    """How long all buckets take; all workers begin together."""

    def average(workers: Communicator, bucket: Bucket) -> None:
        all_reduce_mean_(bucket.gradients, workers, engine.algorithm.needs_nodes)

    slowest(engine, [0.0])
    began_s = clock()
    engine.dispatcher.run_buckets("autotuning", average, engine.context.buckets)
    return clock() - began_s
