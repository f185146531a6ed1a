"""A table that others have published, beside the model's predictions of the same cases."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments.predict.predict import StepPrediction
from host.markdown import table

TOLERANCE = 0.15
"""Of a throughput; a row that is farther off is explained."""

ONE_BUCKET = 2**40
"""Bytes of a bucket that holds all gradients: they travel after backward, in one piece."""

_HEADERS = (
    *("row", "setting", "published (examples/s)", "predicted", "error"),
    *("step (ms)", "predicted"),
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row: `published` and `predicted` examples per second of all workers, who train
    `batch` examples a step. `explanation` says why it is far off.
    """

    row: str
    setting: str
    published: float
    batch: int
    predicted: StepPrediction
    is_fitted: bool = False
    explanation: str | None = None

    @property
    def error(self) -> float:
        """Of examples/s."""
        return self.predicted.examples_per_s / self.published - 1

    @property
    def is_far(self) -> bool:
        """Whether it needs an explanation."""
        return abs(self.error) > TOLERANCE

    def cells(self) -> list[str]:
        """Of the table."""
        remark = " (fitted)" if self.is_fitted else ""
        return [
            self.row,
            self.setting,
            f"{self.published:,.0f}",
            f"{self.predicted.examples_per_s:,.0f}",
            f"{self.error:+z.1%}{remark}",
            f"{1e3 * self.batch / self.published:.0f}",
            f"{1e3 * self.predicted.step_s:.0f}",
        ]


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A section of the page: what was measured, where it is published, and the one number that was
    fitted. `remark` says what follows from the whole.
    """

    title: str
    source: str
    fitted: str
    rows: list[Comparison]
    remark: str = ""

    def markdown(self) -> str:
        """The section."""
        errors = [abs(row.error) for row in self.rows if not row.is_fitted]
        far = [row for row in self.rows if row.is_far]
        parts = [
            f"## {self.title}",
            self.source,
            self.fitted,
            table(_HEADERS, [row.cells() for row in self.rows], "llrrrrr"),
            f"Mean absolute error of the rows that nothing was fitted to: "
            f"{sum(errors) / len(errors):.1%}, worst {max(errors):.1%}.",
        ]
        if far:
            lines = [f"- **{r.row}, {r.setting}** ({r.error:+.0%}). {r.explanation}" for r in far]
            parts += [f"Rows more than {TOLERANCE:.0%} off:", "\n".join(lines)]
        return "\n\n".join([*parts, *([self.remark] if self.remark else [])])


def fit(predict: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The number between `low` and `high` for which `predict`, which grows with it, is `target`;
    `low` or `high` where it lies beyond.
    """
    from scipy import optimize  # here: it takes long to import

    @cache  # the ends are asked for twice
    def off(log: float) -> float:
        return math.log(predict(math.exp(log)) / target)

    ends = math.log(low), math.log(high)
    if off(ends[0]) >= 0:
        return low
    if off(ends[1]) <= 0:
        return high
    root: Any = optimize.brentq(off, *ends, xtol=1e-9)
    return math.exp(root)
