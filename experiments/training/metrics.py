"""What a run tells of itself on the way: rows of metrics."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from experiments.tasks.target import Target


@dataclass(frozen=True, kw_only=True)
class MetricsRow:
    """One logged step or evaluation. The fields are the columns of metrics.parquet, in this order;
    None: the row has no such number.
    """

    kind: str
    """"step" or "evaluation"."""
    step: int
    """Steps done, counted from 1; at an evaluation by every worker: those that wait for nobody may
    have done more.
    """
    epoch: float | None = None
    """Passes over the training examples, with the part of the present one."""
    time_s: float
    """The training clock, in seconds: it stands still during evaluations. There it is that of the
    worker who is furthest.
    """
    loss: float | None = None
    """Of worker 0's batch, in nats."""
    accuracy: float | None = None
    """On the validation set, 0 to 1."""
    validation_loss: float | None = None
    """On the validation set, in nats a label."""
    spread: float | None = None
    """How far the workers' weights are from their mean, at an evaluation."""
    bytes_sent: int | None = None
    """By one worker, as its interface counts them."""
    exposed_communication_s: float | None = None
    """Seconds for which compute has waited for communication."""
    data_wait_s: float | None = None
    """Seconds for which training has waited for examples, reading included where no other process
    reads; None: workers are simulated, whose reading is part of their compute.
    """
    score: float | None = None
    """On the validation set, by the metric of the run's target; None where that is accuracy."""
    own_score: float | None = None
    """By that metric, accuracy included, of the models that the workers have themselves, each on
    its part of the validation set; None where they agree, and in older records.
    """
    mean_step: float | None = None
    """Steps done by the mean worker, at an evaluation of workers that wait for nobody; None: all
    have done `step`, or the record is older.
    """

    @property
    def is_evaluation(self) -> bool:
        """Whether it has an accuracy; else a loss of the training."""
        return self.kind == "evaluation"

    @property
    def steps_done(self) -> float:
        """By the mean worker, as far as that is known."""
        return self.step if self.mean_step is None else self.mean_step

    @property
    def value(self) -> float | None:
        """By the metric of the run's target; None: it is no evaluation."""
        return self.accuracy if self.score is None else self.score


def reaching(rows: Iterable[MetricsRow], target: Target) -> MetricsRow | None:
    """The first evaluation that reaches `target`, None if none does."""
    reached = (row for row in rows if row.is_evaluation and target.is_reached(row.value))
    return next(reached, None)


class Crossing(NamedTuple):
    """Where a straight line between the values of two evaluations reaches a target."""

    before: MetricsRow
    """The last that misses it; the first of all, where that reaches it."""
    after: MetricsRow
    """The first that reaches it."""
    part: float
    """Of the way from one to the other, 0 to 1."""

    def at(self, before: float, after: float) -> float:
        """What a number is there that is so much at the two evaluations."""
        return before + self.part * (after - before)


def crossing(rows: Iterable[MetricsRow], target: Target) -> Crossing | None:
    """Where these rows reach `target`; None for a miss."""
    before = None
    for row in rows:
        if not row.is_evaluation or row.value is None:
            continue
        if target.is_reached(row.value):
            if before is None:
                return Crossing(row, row, 1.0)
            assert before.value is not None and target.value is not None
            return Crossing(before, row, part_of_way(before.value, row.value, target.value))
        before = row
    return None


def part_of_way(before: float, after: float, target: float) -> float:
    """Where `target` lies from a value that misses it to one that reaches it, 0 to 1; 1 where that
    is not to be said, as of an infinite loss.
    """
    part = (target - before) / (after - before)
    return part if math.isfinite(part) else 1.0


def time_to_target(rows: Iterable[MetricsRow], target: Target) -> float | None:
    """Seconds until a straight line from the last evaluation that misses `target` to the first that
    reaches it does; the `time_s` of the first evaluation of all, if that does. None for a miss.
    """
    found = crossing(rows, target)
    return None if found is None else found.at(found.before.time_s, found.after.time_s)
