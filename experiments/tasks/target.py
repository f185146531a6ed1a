"""The metric by which runs are compared, and the value of it that stops the clock.

    accuracy        labels that are right, of all
    top_5           labels among the five largest outputs
    f1              the mean of all classes' F1 (macro), of which those without an example count 0
    exact_match     examples all of whose labels are right
    loss            the mean loss of a label, in nats
    perplexity      exp(loss)
    bits_per_byte   loss / ln 2, of labels that are bytes
    word_error_rate words that are wrong, of each word of the true texts

A task may have its own idea of some: SQuAD's F1 and exact match are means over questions.

Nothing here needs torch, for those who only read records.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

ACCURACY = "accuracy"
LOSS = "loss"
BITS_PER_BYTE = "bits_per_byte"
WORD_ERROR_RATE = "word_error_rate"
LOWER_IS_BETTER = {
    ACCURACY: False,
    "top_5": False,
    "f1": False,
    "exact_match": False,
    LOSS: True,
    "perplexity": True,
    BITS_PER_BYTE: True,
    WORD_ERROR_RATE: True,
}
"""All metrics, and in which direction each is better."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A metric and its value on the validation set, None: no value stops the clock.

    Raises ValueError for a metric that there is not, or a value that it cannot have.
    """

    metric: str = ACCURACY
    value: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in LOWER_IS_BETTER:
            raise ValueError(
                f"there is no metric {self.metric!r}: choose {', '.join(LOWER_IS_BETTER)}"
            )
        if self.value is None:
            return
        name = "target_accuracy" if self.metric == ACCURACY else f"target.{self.metric}"
        if not self.lower_is_better and not 0 < self.value <= 1:
            raise ValueError(f"{name} must be a fraction in (0, 1], got {self.value}")
        if self.lower_is_better and not math.isfinite(self.value):
            raise ValueError(f"{name} must be a finite number, got {self.value}")

    def __str__(self) -> str:
        return self.metric if self.value is None else f"{self.metric} {self.value:g}"

    @property
    def lower_is_better(self) -> bool:
        """The direction in which the metric is better."""
        return LOWER_IS_BETTER[self.metric]

    @property
    def sign(self) -> int:
        """What makes the better of two scores the greater one."""
        return -1 if self.lower_is_better else 1

    @property
    def easier(self) -> str:
        """What to do about a target that is missed, such as "lower target_accuracy"."""
        if self.metric == ACCURACY:
            return "lower target_accuracy"
        return f"{'raise' if self.lower_is_better else 'lower'} target.{self.metric}"

    def is_reached(self, score: float | None) -> bool:
        """Whether `score` is as good as the value; no score, and NaN, never are."""
        if score is None or self.value is None:
            return False
        return self.sign * score >= self.sign * self.value

    def better(self, one: float, other: float) -> float:
        """The better of two scores; of a NaN the other."""
        if math.isnan(one) or math.isnan(other):
            return other if math.isnan(one) else one
        return max(one, other, key=lambda score: self.sign * score)


def target_of(
    accuracy: float | None, others: Mapping[str, float | None], metric: str = ACCURACY
) -> Target:
    """That of `target_accuracy`, unless another metric's is given; without any, the task's `metric`
    and no value.

    Raises ValueError for several, and as `Target`.
    """
    given = {metric: value for metric, value in others.items() if value is not None}
    if not given:
        is_accuracy = metric == ACCURACY or accuracy is not None
        return Target(value=accuracy) if is_accuracy else Target(metric=metric)
    if len(given) > 1:
        raise ValueError(
            f"a run has one target, but got target.{' and target.'.join(given)}: leave one"
        )
    ((metric, value),) = given.items()
    return Target(metric=metric, value=value)
