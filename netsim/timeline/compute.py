"""How long workers compute: the same times for all, varied by worker and step.

A variation is pure: its factors follow from its seed and the step, so that a run that continues
from a checkpoint goes on as it would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from netsim.conditions.link import check_number
from netsim.timeline.link_table import Array


class Variation(Protocol):
    """Factors that multiply the compute times of each worker."""

    def factors(self, step: int, world_size: int) -> Array:
        """`[N]`, for a step that is counted from 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Every worker takes the same time in every step."""

    def factors(self, step: int, world_size: int) -> Array:
        """`[N]` ones."""
        return np.ones(world_size)


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """Independent draws of mean 1: `exp(sigma z - sigma^2 / 2)`, z standard normal.

    Raises:
        ValueError: for a `sigma` or a `seed` below 0.
    """

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("sigma", self.sigma)
        check_number("seed", self.seed)

    def factors(self, step: int, world_size: int) -> Array:
        """`[N]`, drawn for the step."""
        z = np.random.default_rng([self.seed, step]).standard_normal(world_size)
        return np.exp(self.sigma * z - self.sigma**2 / 2)


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """One worker takes `slowdown` times as long as it would by another variation.

    Args:
        slowdown: from 1 up.
        worker: its rank.
        variation: of all workers.
        share: of the steps in which it is, drawn at random; 1: always.
        seed: of the draws.

    Raises:
        ValueError: for a value that makes no straggler.
    """

    slowdown: float
    worker: int = 0
    variation: Variation = field(default_factory=Constant)
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("slowdown", self.slowdown)
        check_number("share", self.share)
        if self.slowdown < 1:
            raise ValueError(f"slowdown={self.slowdown} is no slowdown: choose 1 or more.")
        if self.share > 1:
            raise ValueError(f"share is a part of the steps: choose 0 to 1, not {self.share}.")
        if self.worker < 0:
            raise ValueError(f"worker is a rank from 0 up, not {self.worker}.")

    def factors(self, step: int, world_size: int) -> Array:
        """`[N]`, with a larger factor for the straggler; `ValueError` if it does not exist."""
        if self.worker >= world_size:
            raise ValueError(
                f"The straggler is worker {self.worker}, and {world_size} workers have the ranks "
                f"0 to {world_size - 1}: choose one of these."
            )
        factors = np.array(self.variation.factors(step, world_size))
        # By draws of its own, not those of the variation.
        if self.share == 1 or np.random.default_rng([self.seed, step, 1]).random() < self.share:
            factors[self.worker] *= self.slowdown
        return factors


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Factors that were measured, or made up: for each step one for all workers, or one for each.

    Raises:
        ValueError: for no steps at all, or a factor that is no time.
    """

    steps: Sequence[float | Sequence[float]]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("A trace of compute times needs at least one step.")
        for step in self.steps:
            for factor in step if isinstance(step, Sequence) else [step]:
                check_number("A factor of a trace", factor)

    def factors(self, step: int, world_size: int) -> Array:
        """`[N]` of the step. Raises `ValueError` after the last one, or for other workers."""
        if step >= len(self.steps):
            raise ValueError(
                f"The trace of compute times ends after {len(self.steps)} steps and training goes "
                f"on: record a longer one, or train for fewer steps."
            )
        for number, num_workers in self._first_of_each.items():
            if num_workers != world_size:
                raise ValueError(
                    f"Step {number} of the trace of compute times has {num_workers} workers, and "
                    f"there are {world_size}: give one factor for each, or one for all."
                )
        return np.broadcast_to(np.asarray(self.steps[step], dtype=float), world_size)

    @cached_property
    def _first_of_each(self) -> dict[int, int]:
        """By the first step that has so many: numbers of workers, which should be one number."""
        rows = enumerate(self.steps)
        numbers = [(np.size(row), number) for number, row in rows if np.ndim(row) == 1]
        firsts = {num_workers: number for num_workers, number in reversed(numbers)}
        return {number: num_workers for num_workers, number in firsts.items()}


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """One step's compute on a worker of factor 1, in seconds.

    Args:
        forward_s: forward pass and loss.
        backward_s: the whole backward pass.
        bucket_ready_s: from backward's start until the gradients of each bucket are final, in
            order; see `even_buckets`.
        optimizer_s: the optimizer's step.
        variation: over workers and steps.
        warm_up_s: what the first step of all takes longer.

    Raises:
        ValueError: for times that no backward pass has.
    """

    forward_s: float
    backward_s: float
    bucket_ready_s: Sequence[float] = ()
    optimizer_s: float = 0.0
    variation: Variation = field(default_factory=Constant)
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s", "warm_up_s"):
            check_number(name, getattr(self, name))
        for ready_s in self.bucket_ready_s:
            check_number("Every entry of bucket_ready_s", ready_s)
        for earlier_s, later_s in pairwise([*self.bucket_ready_s, self.backward_s]):
            if later_s < earlier_s:
                raise ValueError(
                    f"bucket_ready_s has {earlier_s} before {later_s}: buckets are ready one after "
                    f"the other, and within backward_s={self.backward_s}."
                )

    def ready_s(self, bucket: int) -> float:
        """When a bucket is ready, from backward's start. Raises `ValueError` without its time."""
        if bucket >= len(self.bucket_ready_s):
            raise ValueError(
                f"Bucket {bucket} has no time in bucket_ready_s, which has "
                f"{len(self.bucket_ready_s)}: give one for each bucket of the model."
            )
        return self.bucket_ready_s[bucket]


def even_buckets(backward_s: float, num_buckets: int) -> tuple[float, ...]:
    """`bucket_ready_s` of buckets whose gradients take equally long."""
    return tuple(backward_s * ((i + 1) / num_buckets) for i in range(num_buckets))
