"""What a search looks for: objectives, each a number of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, crossing, time_to_target


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What objectives are measured against: a target, and seconds of the training clock, which only
    `accuracy_at` has.
    """

    target: Target
    at_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A number of one run, which is to be small, or great where it `is_maximized`."""

    name: str
    unit: str
    is_maximized: bool
    of_rows: Callable[[Sequence[MetricsRow], Aim], float]
    """Of a run that has ended, or was ended when it had all that counts."""
    so_far: Callable[[MetricsRow], float] | None = None
    """What a run has spent of it that has not reached the target: it only grows."""

    @property
    def diverged(self) -> float:
        """What a run comes to whose loss was not finite."""
        return 0.0 if self.is_maximized else math.inf

    @property
    def ends_at_target(self) -> bool:
        """Whether nothing counts that a run does after the target."""
        return self.so_far is not None

    def is_better(self, one: float, other: float) -> bool:
        """Whether `one` is the better number."""
        return one > other if self.is_maximized else one < other


def _steps_per_s(rows: Sequence[MetricsRow], aim: Aim) -> float:
    last = rows[-1] if rows else None
    return 0.0 if last is None or not last.time_s else last.step / last.time_s


def _time(rows: Sequence[MetricsRow], aim: Aim) -> float:
    reached_s = time_to_target(rows, aim.target)
    return math.inf if reached_s is None else reached_s


def _accuracy_at(rows: Sequence[MetricsRow], aim: Aim) -> float:
    assert aim.at_s is not None, "the command was checked"
    accuracies = [row.accuracy for row in rows if row.is_evaluation and row.time_s <= aim.at_s]
    return max((a for a in accuracies if a is not None and not math.isnan(a)), default=0.0)


def _bytes(rows: Sequence[MetricsRow], aim: Aim) -> float:
    found = crossing(rows, aim.target)
    if found is None:
        return math.inf
    before, after = found.before.bytes_sent, found.after.bytes_sent
    return math.nan if before is None or after is None else found.at(before, after)


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective(
            name="steps_per_s",
            unit="steps/s",
            is_maximized=True,
            of_rows=_steps_per_s,
        ),
        Objective(
            name="time_to_accuracy",
            unit="s",
            is_maximized=False,
            of_rows=_time,
            so_far=lambda row: row.time_s,
        ),
        Objective(
            name="accuracy_at",
            unit="",
            is_maximized=True,
            of_rows=_accuracy_at,
        ),
        Objective(
            name="bytes_to_accuracy",
            unit="bytes a worker",
            is_maximized=False,
            of_rows=_bytes,
            so_far=lambda row: float(row.bytes_sent or 0),
        ),
    )
}
"""By name. The accuracies are those of the validation set; the test set is for scoring."""
