"""What a run tells of itself on the way: rows of metrics."""

from collections.abc import Iterable
from dataclasses import dataclass

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

    @property
    def is_evaluation(self) -> bool:
        """Whether it has an accuracy; else a loss of the training."""
        return self.kind == "evaluation"

    @property
    def value(self) -> float | None:
        """By the metric of the run's target; None: it is no evaluation."""
        return self.accuracy if self.score is None else self.score


def reaching(rows: Iterable[MetricsRow], target: Target) -> MetricsRow | None:
    """The first evaluation that reaches `target`, None if none does."""
    reached = (row for row in rows if row.is_evaluation and target.is_reached(row.value))
    return next(reached, None)


def time_to_target(rows: Iterable[MetricsRow], target: Target) -> float | None:
    """The `time_s` of the first evaluation that reaches `target`, None if none does."""
    reached = reaching(rows, target)
    return None if reached is None else reached.time_s
