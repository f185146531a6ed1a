"""Algorithms in the order of their predicted time to accuracy, and which of them tie."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.report.statistics import bootstrap_interval
from experiments.simulated.outcome import SimulatedOutcome

SIMULATOR_ERROR = 0.06
"""By how much a predicted time may be off: see `experiments.validation.step_times`."""

TIE_RULE = (
    "Two algorithms tie where the 95 % bootstrap interval over seeds of the ratio of their times, "
    f"widened to both sides by the simulator's own error of {100 * SIMULATOR_ERROR:g} %, holds 1."
)


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

    def median(self, pick: Callable[[SimulatedOutcome], float]) -> float:
        """Of what `pick` takes from each outcome."""
        return float(np.median([pick(outcome) for outcome in self.outcomes]))


def ranked(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The fastest first; those that missed last, the most accurate of them first."""
    return sorted(predictions, key=lambda p: (p.time_s, -_accuracy(p), p.algo))


def is_tie(times_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Whether two algorithms tie by `TIE_RULE`; the times, inf for a miss, are by the same seeds.

    A pair of misses counts as a ratio of 1.
    """
    low, high = bootstrap_interval([_ratio(*pair) for pair in zip(times_s, others_s, strict=True)])
    return low / (1 + SIMULATOR_ERROR) <= 1 <= high * (1 + SIMULATOR_ERROR)


def ties(predictions: Sequence[Prediction], index: int) -> list[int]:
    """The indices of those that tie with the one at `index`, which has reached the target."""
    own = predictions[index]
    if math.isinf(own.time_s):
        return []
    return [
        i
        for i, other in enumerate(predictions)
        if i != index and not math.isinf(other.time_s) and is_tie(own.times_s, other.times_s)
    ]


def _ratio(time_s: float, other_s: float) -> float:
    return 1.0 if time_s == other_s else time_s / other_s


def _accuracy(prediction: Prediction) -> float:
    """The median of the best; nothing where a run diverged before its first evaluation."""
    return float(np.median([np.nan_to_num(o.accuracy) for o in prediction.outcomes]))
