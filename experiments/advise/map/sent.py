"""What each algorithm sends in its steps, told by the algorithm itself, for a model of any size.

The algorithm is at work on the shapes of the model that it was trained with, without numbers
(`experiments.predict.dry_run`), in one bucket. Its operations are the same for a larger model, with
as many times more bytes; and in several buckets of equal size, each with its part of the bytes.
Kernels take nothing here: compression has no cost without units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer

from bagua_algos.communication.communicator import Operation
from bagua_algos.engine.algorithm import Algorithm
from experiments.plan.part import make_part
from experiments.predict.dry_run import DryRun, meta_buckets
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.timeline.compute import ComputeTimes
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline, TimelineJob

Step = tuple[TimelineJob, ...]

Shapes = Sequence[tuple[int, ...]]
"""Of a model's parameters, in their order."""

_ONE_BUCKET = 1 << 40
"""Bytes; more than any model has."""

_ROUNDS = 4
"""That are looked at: all of them are alike."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The steps of an algorithm: `num_early` that are all like `early`, then `period`, again and
    again. `num_bytes` is what the bucket of all gradients has.
    """

    num_early: int
    early: Step
    period: tuple[Step, ...]
    num_bytes: int

    @property
    def all_reduces(self) -> bool:
        """Whether the pattern of all-reduces matters."""
        return any(
            part.name == "all_reduce_mean"
            for job in self._jobs
            for part in job.work
            if isinstance(part, Operation)
        )

    @property
    def has_buckets(self) -> bool:
        """Whether it sends a bucket while others are still computed."""
        return any(job.bucket is not None and job.work for job in self._jobs)

    @property
    def _jobs(self) -> Iterator[TimelineJob]:
        for step in (self.early, *self.period):
            yield from step

    @lru_cache(maxsize=256)  # noqa: B019
    def of_size(self, gradient_bytes: float, num_buckets: int) -> Sent:
        """The same for gradients of so many bytes, in so many buckets."""
        factor = gradient_bytes / self.num_bytes
        return replace(
            self,
            early=_cut(self.early, factor, num_buckets),
            period=tuple(_cut(step, factor, num_buckets) for step in self.period),
            num_bytes=round(gradient_bytes),
        )


def shapes_of(model: Mapping[str, Any]) -> Shapes:
    """Of the parameters of a model as in a run's config.yaml, which is made for that.

    Raises `UserError` as the model does, such as where its weights are not installed.
    """
    return _shapes_of(json.dumps(model))


@cache
def _shapes_of(model: str) -> Shapes:
    return tuple(tuple(each.shape) for each in _made(json.loads(model), "model").parameters())


def can_train(algo: Mapping[str, Any], optim: Mapping[str, Any], workers: int) -> bool:
    """Whether an algorithm takes so many workers; algorithm and optimizer as for `sent`."""
    optimizer = _made(optim, "optim")([nn.Parameter(torch.empty(1, device="meta"))])
    try:
        _made(algo, "algo").check(workers, optimizer)
    except ValueError:
        return False
    return True


def sent(shapes: Shapes, algo: Mapping[str, Any], optim: Mapping[str, Any], workers: int) -> Sent:
    """The steps of an algorithm between so many workers, on parameters of these shapes; algorithm
    and optimizer as in a run's config.yaml.
    """
    return sent_of(_made(algo, "algo"), _made(optim, "optim"), shapes, workers)


def sent_of(
    algorithm: Algorithm,
    make_optimizer: Callable[..., Optimizer],
    shapes: Shapes,
    workers: int,
    bucket_bytes: int = _ONE_BUCKET,
) -> Sent:
    """The steps of an algorithm on parameters of these shapes. Raises `UserError` where these
    depend on timing.
    """
    if algorithm.depends_on_timing:
        raise UserError(
            f"the values of {type(algorithm).__name__} depend on timing, so that one training does "
            "not serve all places of the map: leave it out"
        )
    buckets = meta_buckets(shapes, workers, bucket_bytes)
    timeline = Timeline(
        CostModel(NetworkCondition(), workers),
        ComputeTimes(forward_s=1, backward_s=1, bucket_ready_s=[1.0] * len(buckets)),
        num_lanes=1,
    )
    run = DryRun(algorithm, buckets, make_optimizer, timeline, memory_rate=math.inf)
    for _ in range(algorithm.num_early_steps + _ROUNDS * algorithm.steps_per_round):
        run.step()
    run.close()
    num_early = _num_alike(run.script) if algorithm.num_early_steps else 0
    return Sent(
        num_early=num_early,
        early=run.script[0],
        period=_period(run.script[num_early:]),
        num_bytes=sum(bucket.gradients.nbytes for bucket in buckets),
    )


def _made(node: Mapping[str, Any], group: str) -> Any:
    return make_part(OmegaConf.create(dict(node)), group)


def _num_alike(steps: Sequence[Step]) -> int:
    """How many steps there are until one differs from the first."""
    return next(i for i, step in enumerate(steps) if _kind(step) != _kind(steps[0]))


def _period(steps: Sequence[Step]) -> tuple[Step, ...]:
    kinds = [_kind(step) for step in steps]
    half = len(steps) // 2
    for period in range(1, half + 1):
        if kinds[period:] == kinds[:-period]:
            return tuple(steps[:period])
    raise AssertionError(f"no period within {half} steps")


def _kind(step: Step) -> tuple[Any, ...]:
    """What tells a step from others where all links are alike: not whom messages go to."""
    return tuple(
        (
            job.moment,
            job.bucket,
            tuple((o.name, o.num_bytes) for o in job.work if isinstance(o, Operation)),
        )
        for job in step
    )


def _cut(step: Step, factor: float, num_buckets: int) -> Step:
    """With so many times the bytes, in so many buckets: work of the one bucket becomes work of
    each, and what an algorithm does later on is done for each in turn.
    """
    jobs = []
    for job in step:
        work = tuple(
            _scaled(part, factor / num_buckets) for part in job.work if isinstance(part, Operation)
        )
        if job.bucket is None:
            jobs.append(replace(job, work=work * num_buckets))
        else:
            jobs += [replace(job, bucket=k, work=work) for k in range(num_buckets)]
    return tuple(jobs)


def _scaled(operation: Operation, factor: float) -> Operation:
    return replace(operation, num_bytes=max(round(operation.num_bytes * factor), 1))
