"""How long the trials of a search will take from now.

A trial that takes the values of an earlier one lasts as long as its clocks: a fraction of one that
trains. Which of the two it is shows once it has begun:

    left = what its kind has taken on the average, less what it has taken      of the one at work
           + t trained + (m - t) reused, of these averages                     of the m others

    t = min(m (k + 1) / (n + 2), (v - d) (1 - (1 - 1 / v)^m))

where k of the n trials after the first one have trained, and d of v settings that give different
values. Where v has no bound, every trial trains. The first trial of all is the slowest, by what it
imports: others that have trained say more.

Other processes of the search take their part at the same time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from experiments.advise.tuning.ranges import Range
from experiments.advise.tuning.request import Request
from experiments.simulated.kept_trainings import changes_times_alone
from host.remaining import Clock, Work


def num_values(request: Request) -> float:
    """How many settings there are that give different values; inf where a range has no steps, or
    where no trial takes the values of another one.
    """
    if not request.plan.backend.is_simulated:
        return math.inf
    fields = [field for name, field in request.fields.items() if not changes_times_alone(name)]
    return math.prod(_num_in(field) for field in fields)


def _num_in(field: Range) -> float:
    if field.choices:
        return len(field.choices)
    return field.high - field.low + 1 if field.is_whole else math.inf


class Took(NamedTuple):
    """A trial that is done, in this command or in another one."""

    seconds: float
    is_reused: bool


class TrialsLeft(Work):
    """The work of a search over so many different `values`, of `num_values`."""

    def __init__(self, *, values: float, clock: Clock = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._values = values
        self._took: Sequence[Took] = ()
        self._num_left, self._at_once = 0, 1
        self._begun_trial_s: float | None = None
        self._is_reused: bool | None = None

    def known(self, took: Sequence[Took], num_left: int, at_once: int = 1) -> None:
        """What is done has taken so long; `num_left` are not done, of which `at_once` are at
        work, by all processes.
        """
        self._took, self._num_left, self._at_once = took, num_left, max(at_once, 1)

    def begin_trial(self) -> None:
        """One of them is at work, of which it is not known whether it trains."""
        self._begun_trial_s, self._is_reused = self._clock(), None

    def is_of(self, *, is_reused: bool) -> None:
        """By now it is."""
        self._is_reused = is_reused

    def end_trial(self) -> Took:
        """It is done; returns how long it took."""
        assert self._begun_trial_s is not None, "a trial has begun"
        took = Took(self._clock() - self._begun_trial_s, bool(self._is_reused))
        self._begun_trial_s = None
        return took

    @property
    def has_told(self) -> bool:
        """Whether a trial says how long others take."""
        return bool(self._took)

    @property
    def left_s(self) -> float:
        """Seconds until all trials are done; 0 where none says anything yet."""
        if not self._num_left or not self._took:
            return 0.0
        if self._begun_trial_s is None:
            return self._coming_s(self._num_left) / self._at_once
        alike = [took.seconds for took in self._took if took.is_reused == self._is_reused]
        if not self._is_reused:
            alike = self._trained_s() or alike
        whole_s = fmean(alike or self._trained_s())
        own_s = max(whole_s - (self._clock() - self._begun_trial_s), 0.0)
        return own_s + self._coming_s(max(self._num_left - self._at_once, 0)) / self._at_once

    def _trained_s(self) -> list[float]:
        """What trials took that trained; the first of all only where it is the only one."""
        trained = [took.seconds for took in self._took if not took.is_reused]
        return trained[1:] or trained

    def _coming_s(self, number: int) -> float:
        """Seconds of trials that have not begun."""
        trained_s = self._trained_s()
        reused_s = [took.seconds for took in self._took if took.is_reused]
        num_trained = sum(not took.is_reused for took in self._took)
        if math.isinf(self._values) or not num_trained:
            return number * fmean(trained_s or reused_s)
        fresh = max(self._values - num_trained, 0) * (1 - (1 - 1 / self._values) ** number)
        to_train = min(number * num_trained / (len(self._took) + 1), fresh)
        return to_train * fmean(trained_s) + (number - to_train) * fmean(reused_s or [0.0])
