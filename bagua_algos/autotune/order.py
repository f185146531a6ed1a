"""In which order sums are made, decided before the first step, while that changes no value yet.

Buckets, streams and pattern can be tuned without another bit where sums have an order of their own
(`direct.py`). Where the network is near, gloo's ring, whose order depends on all three, may be the
faster one: then they stay as they are. So both are timed: all buckets of the model, on the lanes
that they will travel on, without the compute beside them. Only in a fixed order can streams and
buckets be tuned, so that order is timed by several streams, too, and in smaller buckets. Over a far
network both orders are as slow as each other by one stream, and several are what counts. Smaller
buckets hide more of their time behind the compute, so it is enough that the fixed order is as fast
in them. All workers hear of all times and decide by one rule.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from bagua_algos.autotune.search import WORTH_IT
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.primitives import all_reduce_mean_
from bagua_algos.communication.streams import SEVERAL, connected_when_used
from bagua_algos.engine.bucket import Bucket, grouped
from bagua_algos.engine.engine import Engine

BUDGET_S = 3.0
"""For the turns after the first two, which are made however slow the network is."""
FEWEST_TURNS, MOST_TURNS = 2, 9
CLEAR = 1.5
"""Times as fast: no other turn is needed, and what the search may not find again is worth it."""
SMALLER = 8
"""Times as small as given are the smaller buckets: between the first two sizes of the search."""


@dataclass(frozen=True, kw_only=True)
class OrderTrial:
    """What was measured: the median seconds in which all buckets are averaged, on the slowest
    worker, by the pattern that was given, in a fixed order, in that by several streams, and in that
    in smaller buckets; None where there were as many from the start, or none so small.
    """

    given_s: float
    fixed_s: float
    several_s: float | None = None
    smaller_s: float | None = None
    num_turns: int

    @property
    def best_fixed_s(self) -> float:
        """In a fixed order, over the streams given."""
        return self.fixed_s if self.smaller_s is None else min(self.fixed_s, self.smaller_s)

    @property
    def is_fixed(self) -> bool:
        """Whether sums get a fixed order: not where the pattern given saves more than chance,
        unless several streams are much faster.
        """
        return WORTH_IT * self.best_fixed_s <= self.given_s or self._several_are_clear

    @property
    def is_clear(self) -> bool:
        """Whether no other turn would change that."""
        slower_s, faster_s = sorted((self.given_s, self.best_fixed_s), reverse=True)
        return slower_s >= CLEAR * faster_s or self._several_are_clear

    @property
    def _several_are_clear(self) -> bool:
        return self.several_s is not None and CLEAR * self.several_s <= self.given_s


@dataclass(frozen=True, kw_only=True)
class Order:
    """Whether sums have an order that no setting changes; and the trial, if that was measured."""

    is_fixed: bool
    trial: OrderTrial | None = None


def choose_order(engine: Engine, bucket_bytes: int | None) -> Order:
    """Measure where there is a choice, and give the engine's all-reduces what is faster; a
    collective call, before the first step. Buckets hold `bucket_bytes`, None where they cannot
    change.
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
    trial = try_orders(engine, bucket_bytes) if has_choice else None
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


@dataclass(frozen=True, kw_only=True)
class _Way:
    """Of averaging `buckets`; what it is called in `OrderTrial`."""

    name: str
    is_fixed: bool
    streams: int
    buckets: Sequence[Bucket]


def try_orders(
    engine: Engine,
    bucket_bytes: int | None = None,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> OrderTrial:
    """Time them in turn; a collective call, while all gradients are zero, which they stay."""
    ways = _ways(engine, bucket_bytes)
    for way in ways:
        if way.streams > ways[0].streams:
            _average_s(engine, way, clock)  # which connects them
    started_s, turns = clock(), []
    while True:
        times_s = [0.0] * len(ways)
        order = range(len(ways))
        for number in order if len(turns) % 2 else reversed(order):
            times_s[number] = _average_s(engine, ways[number], clock)
        *times_s, spent_s = slowest(engine, [*times_s, clock() - started_s])
        turns.append(dict(zip([way.name for way in ways], times_s, strict=True)))
        trial = conclusion(turns)
        if len(turns) == MOST_TURNS or (
            len(turns) >= FEWEST_TURNS and (trial.is_clear or spent_s > budget_s)
        ):
            return trial


def conclusion(turns: Sequence[Mapping[str, float]]) -> OrderTrial:
    """What the seconds of all turns say, each called as in `OrderTrial`."""
    medians_s = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return OrderTrial(**medians_s, num_turns=len(turns))


def _ways(engine: Engine, bucket_bytes: int | None) -> list[_Way]:
    given, streams = engine.context.buckets, engine.context.communicator.streams
    ways = [
        _Way(name="given_s", is_fixed=False, streams=streams, buckets=given),
        _Way(name="fixed_s", is_fixed=True, streams=streams, buckets=given),
    ]
    if streams < SEVERAL:
        ways.append(_Way(name="several_s", is_fixed=True, streams=SEVERAL, buckets=given))
    if bucket_bytes is not None:
        smaller = _divided(given, max(1, at_most_all(given, bucket_bytes) // SMALLER))
        if len(smaller) > len(given):
            ways.append(_Way(name="smaller_s", is_fixed=True, streams=streams, buckets=smaller))
    return ways


def _divided(buckets: Sequence[Bucket], bucket_bytes: int) -> list[Bucket]:
    """Their parts as the search would make them, in the same memory; a parameter stays whole."""
    parts: list[Bucket] = []
    for bucket in buckets:
        groups = grouped(bucket.parameters, num_held=1, bucket_bytes=bucket_bytes)
        starts = dict(zip(bucket.parameters, bucket.starts, strict=True))
        columns = [0, *(starts[group[0]] for group in groups[1:]), bucket.gradients.shape[1]]
        for start, stop in itertools.pairwise(columns):
            gradients = bucket.gradients[:, start:stop]
            parts.append(replace(bucket, index=len(parts), gradients=gradients))
    return parts


def at_most_all(buckets: Sequence[Bucket], bucket_bytes: int) -> int:
    """`bucket_bytes`, or the bytes of all parameters where these are fewer."""
    sizes = (p.numel() * p.element_size() for bucket in buckets for p in bucket.parameters)
    return min(bucket_bytes, sum(sizes))


def slowest(engine: Engine, numbers: list[float]) -> list[float]:
    """The greatest of all workers' numbers, each by itself; a collective call."""
    workers: Communicator = engine.context.communicator
    every: list[torch.Tensor] = []
    device = engine.context.buckets[0].weights.device
    own_w = torch.tensor([numbers], dtype=torch.float64, device=device)
    engine.dispatcher.run("autotuning", lambda: every.append(workers.all_gather(own_w)))
    return every[0][0].amax(0).tolist()


def _average_s(engine: Engine, way: _Way, clock: Callable[[], float]) -> float:
    """How long all buckets take; all workers begin together."""

    def average(workers: Communicator, bucket: Bucket) -> None:
        all_reduce_mean_(bucket.gradients, workers, engine.algorithm.needs_nodes)

    sum_in(engine, is_fixed=way.is_fixed, streams=way.streams)
    slowest(engine, [0.0])
    began_s = clock()
    engine.dispatcher.run_buckets("autotuning", average, way.buckets)
    return clock() - began_s
