"""How long the trials of a search will take from now.

A trial that takes the values of an earlier one lasts as long as its clocks: a fraction of one that
trains. Which of the two it is shows once it has begun:

    left = what its kind has taken on the average, less what it has taken      of the one at work
           + share trained + (1 - share) reused, of these averages             of each other one

    share = (k + 1) / (n + 2)

where k of the n trials after the first one have trained; 1 where every trial has to.

Other processes of the search take their part at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from experiments.advise.tuning.request import Request
from experiments.simulated.kept_trainings import changes_times_alone
from host.remaining import Clock, Work


def may_reuse(request: Request) -> bool:
    """Whether a trial can have the values that an earlier one had: no two that train draw the same
    number from a range without steps.
    """
    own = [field for name, field in request.fields.items() if not changes_times_alone(name)]
    are_few = all(field.choices or field.is_whole for field in own)
    return request.plan.backend.is_simulated and are_few


class Took(NamedTuple):
    """A trial that is done, in this command or in another one."""

    seconds: float
    is_reused: bool


class TrialsLeft(Work):
    """The work of a search, of which some trials `may_reuse` values of earlier ones."""

    def __init__(self, *, may_reuse: bool, clock: Clock = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._may_reuse = may_reuse
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
        typical_s = self._typical_s()
        if self._begun_trial_s is None:
            return typical_s * self._num_left / self._at_once
        alike = [took.seconds for took in self._took if took.is_reused == self._is_reused]
        whole_s = fmean(alike) if alike else typical_s
        own_s = max(whole_s - (self._clock() - self._begun_trial_s), 0.0)
        return own_s + typical_s * max(self._num_left - self._at_once, 0) / self._at_once

    def _typical_s(self) -> float:
        """Seconds of a trial that has not begun."""
        trained = [took.seconds for took in self._took if not took.is_reused]
        reused = [took.seconds for took in self._took if took.is_reused]
        if not (trained and self._may_reuse):
            return fmean(trained or reused)
        share = len(trained) / (len(self._took) + 1)  # the first one trains, whatever others do
        return share * fmean(trained) + (1 - share) * (fmean(reused) if reused else 0.0)
