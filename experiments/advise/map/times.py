"""Seconds until a step of a job, on clocks of the cost model that have no units of their own.

The hosts are ideal: they move bytes and handle messages in no time, and their TCP windows are open.
Then all that is left scales: with twice the compute, twice the delay and half the rate, every step
takes twice as long. Loss is another matter, since TCP counts in packets.

Compute is a third forward and two thirds backward; gradients are final evenly over the backward
pass. Each algorithm gets the fastest of `SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bagua_algos.communication.patterns import EVERY_SIZE
from experiments.advise.map.job import Job
from experiments.advise.map.sent import Sent, Step
from experiments.advise.map.trainings import Array
from experiments.simulated.replay import step_ends_s
from netsim.timeline.compute import ComputeTimes, even_buckets
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline
from netsim.timeline.transport import Transport

_ENDLESS = 1e18

IDEAL = Transport(
    operation_s=0,
    message_s=0,
    bytes_per_s=_ENDLESS,
    messages_per_s=_ENDLESS,
    segment_bytes=_ENDLESS,
    rendezvous=False,
    straggling_bytes=0,
    initial_window_bytes=_ENDLESS,
    max_window_bytes=_ENDLESS,
    smallest_part_bytes=0,
    slow_start_after_idle=False,
    streams=8,
)
"""A host that adds nothing to its network. It has 8 TCP streams to each other one: more of them are
never slower here, for parts of a message hide each other's delay, and one alone is slow where
packets are lost.
"""

_FORWARD = 1 / 3
"""Of the compute; backward computes two gradients for each product of forward."""


class Setting(NamedTuple):
    """What an engine can choose for any algorithm: the number of equal buckets, and recursive
    halving and doubling in place of rings.
    """

    num_buckets: int
    is_halving: bool


SETTINGS = tuple(
    Setting(num_buckets, is_halving) for num_buckets in (1, 8) for is_halving in (True, False)
)


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """When steps end: the first ones as simulated, `ends_s`; from there on each so much later than
    the one a period before.
    """

    ends_s: Array
    num_steps: int
    period_s: float

    def at(self, steps: Array) -> Array:
        """Seconds until so many steps have ended, in proportion within a step; inf for inf."""
        finite = np.where(np.isinf(steps), 0, steps)
        whole = np.floor(finite)
        began_s = self._ends_s(whole)
        at_s = began_s + (finite - whole) * (self._ends_s(whole + 1) - began_s)
        return np.where(np.isinf(steps), np.inf, at_s)

    def _ends_s(self, steps: Array) -> Array:
        """Of whole numbers."""
        known = len(self.ends_s)
        periods = np.ceil(np.maximum(steps - known, 0) / self.num_steps)
        rest = (steps - periods * self.num_steps).astype(int)
        return np.append(0.0, self.ends_s)[rest] + periods * self.period_s


def times_s(sent: Sent, job: Job, steps: Array) -> Array:
    """Seconds until so many `steps` have ended, by the setting that is the fastest for it."""
    by_setting = [times_by(sent, job, steps, setting) for setting in _settings(sent)]
    return np.min(by_setting, axis=0)


def step_s(sent: Sent, job: Job) -> float:
    """The mean of the later steps, by the fastest setting."""
    far = np.array([1e6, 2e6])
    return min(
        float(np.diff(times_by(sent, job, far, setting))[0]) / 1e6 for setting in _settings(sent)
    )


def _settings(sent: Sent) -> Sequence[Setting]:
    """Those that differ: buckets matter where some are sent while others are still computed."""
    return [
        setting
        for setting in SETTINGS
        if (setting.num_buckets == 1 or sent.has_buckets)
        and (setting.is_halving or sent.all_reduces)
    ]


def times_by(sent: Sent, job: Job, steps: Array, setting: Setting) -> Array:
    """Seconds until so many `steps` have ended, by one setting: two clocks, of the early steps and
    of all later ones.
    """
    sized = sent.of_size(job.gradient_bytes, setting.num_buckets)
    early, late = _clocks(sized, job, setting)
    if early is None:
        return late.at(steps)
    early_s = early.at(np.minimum(steps, sent.num_early))
    begun_s = float(early.at(np.array([float(sent.num_early)]))[0])
    is_late = steps > sent.num_early
    late_s = late.at(np.where(is_late, steps - sent.num_early, 1))
    return np.where(is_late, begun_s + late_s, early_s)


@lru_cache(maxsize=1024)
def _clocks(sized: Sent, job: Job, setting: Setting) -> tuple[_Clock | None, _Clock]:
    """Of the early steps, if there are any, and of the later ones, one after the other on a
    timeline. Algorithms that send the same share them.
    """
    timeline = _timeline(job, setting)
    early = _clock(timeline, (sized.early,), 0.0) if sized.num_early else None
    return early, _clock(timeline, sized.period, float(timeline.time_s.max()))


def _clock(timeline: Timeline, period: Sequence[Step], began_s: float) -> _Clock:
    """Of steps that repeat themselves on a timeline that is at `began_s`. Two periods are
    simulated, of which the second is like all later ones; or one, if it leaves the timeline at rest
    as it found it.
    """
    num_steps = len(period)
    found_at_rest = timeline.is_at_rest
    first_s = _ends_s(period, timeline) - began_s
    if found_at_rest and timeline.is_at_rest:
        return _Clock(ends_s=first_s, num_steps=num_steps, period_s=float(first_s[-1]))
    second_s = _ends_s(period, timeline) - began_s
    return _Clock(
        ends_s=np.append(first_s, second_s),
        num_steps=num_steps,
        period_s=float(second_s[-1] - first_s[-1]),
    )


def _ends_s(script: Sequence[Step], timeline: Timeline) -> Array:
    """When each step ends. Of steps in a row that send nothing the first is simulated: the others
    take as long.
    """
    is_idle = [not any(job.work for job in step) for step in script]
    is_known = [False, *(a and b for a, b in pairwise(is_idle))]
    simulated = [step for step, known in zip(script, is_known, strict=True) if not known]
    began_s = float(timeline.time_s.max())
    lasted_s = np.diff(step_ends_s(simulated, timeline), prepend=began_s)
    like = np.cumsum(~np.array(is_known)) - 1
    return began_s + np.cumsum(lasted_s[like])


def _timeline(job: Job, setting: Setting) -> Timeline:
    backward_s = (1 - _FORWARD) * job.compute_s
    compute = ComputeTimes(
        forward_s=_FORWARD * job.compute_s,
        backward_s=backward_s,
        bucket_ready_s=even_buckets(backward_s, setting.num_buckets),
    )
    return Timeline(_costs(job, setting.is_halving), compute, num_lanes=1)


@lru_cache(maxsize=8)
def _costs(job: Job, is_halving: bool) -> CostModel:
    """One for all algorithms, which have many operations in common."""
    transport = replace(
        IDEAL,
        halving_doubling_bytes=EVERY_SIZE if is_halving else 0,
    )
    return CostModel(job.net, job.workers, transport)
