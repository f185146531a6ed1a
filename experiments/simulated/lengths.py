"""Steps whose batches are cut to their longest example: the longer a batch, the longer its step.

    seconds of a step = a + b * places of its batch        (fitted in the rehearsal)

Places are the longest example's, averaged over the micro-batches of a step.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.plan.plan import Plan
from experiments.simulated.profile import Profile
from experiments.tasks.base import Task, TaskData, load_data
from experiments.tasks.batches import Batches
from netsim.timeline.compute import Variation


@dataclass(frozen=True, kw_only=True)
class ByLength:
    """A `netsim` variation: another one's factors, times how long a worker's batch is.

    `per_place` is by what part of the mean step a step is longer for one place more than
    `mean_places`.
    """

    variation: Variation
    batches: Batches
    lengths: NDArray[np.int64]
    accumulate: int
    per_place: float
    mean_places: float

    def factors(self, step: int, world_size: int) -> NDArray[np.float64]:
        """`[N]`, for a step that is counted from 0."""
        places_w = places(self.batches.indices(step), self.lengths, self.accumulate)
        longer_w = 1 + self.per_place * (places_w - self.mean_places)
        return self.variation.factors(step, world_size) * longer_w.clip(min=0)


def by_length(plan: Plan, profile: Profile, variation: Variation) -> Variation:
    """`variation`, and the lengths of the plan's batches where they are cut."""
    if not plan.loading.sampler.crop:
        return variation
    data = _load(plan.task, for_tuning=plan.loading.for_tuning)
    return ByLength(
        variation=variation,
        batches=plan.batches(data, tuple(range(plan.workers))),
        lengths=plan.task.lengths(data.train),
        accumulate=plan.accumulate,
        per_place=profile.per_place,
        mean_places=profile.mean_places,
    )


def places(indices_wb: NDArray, lengths: NDArray, accumulate: int) -> NDArray[np.float64]:
    """Of each worker's batch `[w]`."""
    micro = lengths[indices_wb % len(lengths)].reshape(len(indices_wb), accumulate, -1)
    return micro.max(2).mean(1)


def by_places(profile: Profile, places_s: Sequence[float], step_s: Sequence[float]) -> Profile:
    """`profile` with the line through its steps of so many places and seconds: the median of the
    slopes between any two (Theil and Sen), since other programs make single steps much slower.
    """
    mean_places = float(np.mean(places_s))
    if np.ptp(places_s) == 0:
        return replace(profile, mean_places=mean_places)
    from scipy.stats import theilslopes  # takes half a second

    slope, *_ = np.asarray(theilslopes(step_s, places_s))
    return replace(
        profile, per_place=max(0.0, float(slope / np.median(step_s))), mean_places=mean_places
    )


@functools.lru_cache(maxsize=1)
def _load(task: Task, *, for_tuning: bool) -> TaskData:
    return load_data(task, for_tuning=for_tuning)
