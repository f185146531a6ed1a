"""Algorithms in the order of their predicted time to accuracy, and which of them tie."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.report.statistics import MIN_SEEDS, is_tie, prediction_errors
from experiments.simulated.outcome import SimulatedOutcome
from experiments.tasks.target import Target


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One algorithm on one network: an outcome for each seed, in the seeds' order."""

    algo: str
    outcomes: Sequence[SimulatedOutcome]

    @property
    def times_s(self) -> list[float]:
        """To the target accuracy; inf: missed."""
        return [outcome.time_to_accuracy_s for outcome in self.outcomes]

    @property
    def time_s(self) -> float:
        """Their median; inf where the median run missed."""
        return float(np.median(self.times_s))

    @property
    def num_missed(self) -> int:
        """Seeds that missed the target."""
        return sum(map(math.isinf, self.times_s))

    @property
    def num_diverged(self) -> int:
        """Seeds whose training diverged, which are among those that missed."""
        return sum(outcome.has_diverged for outcome in self.outcomes)

    @property
    def score(self) -> float:
        """The median of their best scores; NaN where some have none."""
        return float(np.median([outcome.score for outcome in self.outcomes]))

    def median(self, pick: Callable[[SimulatedOutcome], float]) -> float:
        """Of what `pick` takes from each outcome, where it is not NaN; NaN where it is in all."""
        known = [value for value in map(pick, self.outcomes) if not math.isnan(value)]
        return float(np.median(known)) if known else math.nan


def ranked(predictions: Iterable[Prediction], target: Target) -> list[Prediction]:
    """The fastest first; those that missed last, the nearest of them first."""
    return sorted(predictions, key=lambda p: (p.time_s, -_nearness(p, target), p.algo))


def tie_rule() -> str:
    """When predicted times tie by `is_tie`, in two sentences."""
    classes = [
        f"{100 * error:.0f} % "
        + ("on faster or unlimited ones" if math.isinf(end) else f"up to {end:g} Mbit/s")
        for end, error in prediction_errors().items()
    ]
    return (
        "Two algorithms tie where their medians are equal, or where the 95 % interval of the ratio "
        "of their times, paired by seed, holds 1 when it is widened to both sides by "
        f"the error of predicted times; with fewer than {MIN_SEEDS} seeds, the ratio of the "
        "medians stands for the interval. The error is that of step times, simulated against "
        "measured (results/validation/time.md), by the rate of the slowest link: "
        f"{', '.join(classes)}."
    )


def predictions_tie(one: Prediction, other: Prediction, model_error: float) -> bool:
    """Whether two algorithms tie by `tie_rule`; both were trained with the same seeds."""
    return is_tie(one.times_s, other.times_s, paired=True, model_error=model_error)


def ties(predictions: Sequence[Prediction], index: int, model_error: float) -> list[int]:
    """The indices of those that tie with the one at `index`, which has reached the target."""
    own = predictions[index]
    if math.isinf(own.time_s):
        return []
    return [
        i
        for i, other in enumerate(predictions)
        if i != index and not math.isinf(other.time_s) and predictions_tie(own, other, model_error)
    ]


def _nearness(prediction: Prediction, target: Target) -> float:
    """The median of the best, greater if better; the least for a run that diverged before its first
    evaluation.
    """
    worst = -math.inf if target.lower_is_better else 0.0
    scores = [target.sign * o.score for o in prediction.outcomes]
    return float(np.median([worst if math.isnan(score) else score for score in scores]))
