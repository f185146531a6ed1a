"""What the advisor says of one network: a table, the finding in one sentence, and how real runs of
the first choices came out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.advise.rank import Prediction, predictions_tie, ties
from experiments.report.statistics import median_interval
from experiments.tasks.target import ACCURACY, Target
from host import markdown
from host.words import counted

BASELINE = "allreduce"

_FEW = 3
"""The most names that a sentence lists."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """All algorithms on one network, ranked; `measured_s` are the times to accuracy of real runs,
    one for each seed, of those that were run. `model_error` is that of the predicted times.
    """

    situation: str
    target: Target
    predictions: Sequence[Prediction]
    model_error: float
    measured_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was predicted, how, and on what."""
        seeds = counted(len(self.predictions[0].outcomes), "seed")
        return f"{self.situation}, target {self.target}: simulated, {seeds}"

    def table(self) -> Table:
        """To be printed."""
        rendered = Table(title=Text(self.title, style="bold"))
        columns = self._columns()
        for header in columns:
            rendered.add_column(header, justify="left" if header == "algorithm" else "right")
        for cells in zip(*columns.values(), strict=True):
            rendered.add_row(*map(Text, cells))
        return rendered

    def markdown(self) -> str:
        """A section of a page: the same table, and all sentences."""
        columns = self._columns()
        align = "".join("l" if header == "algorithm" else "r" for header in columns)
        table = markdown.table(list(columns), zip(*columns.values(), strict=True), align)
        return "\n".join([f"## {self.title}", "", table, "", *self.sentences(), ""])

    def sentences(self) -> list[str]:
        """The finding, and the verdict if several were measured."""
        return [self.finding(), *([self.verdict()] if len(self.measured_s) > 1 else [])]

    def finding(self) -> str:
        """Who is first, by how much before the baseline, and who ties with it."""
        first = self.predictions[0]
        if math.isinf(first.time_s):
            if math.isnan(first.score):
                return (
                    f"Simulated: no algorithm reaches {self.target.value:g} in the median run, nor "
                    "does the median run of any have a score, since trainings diverged: lower "
                    "lr_scale."
                )
            return (
                f"Simulated: no algorithm reaches {self.target.value:g} in the median run; the "
                f"nearest is {first.algo} with {first.score:.3f}: raise max_steps or "
                f"{self.target.easier}."
            )
        equals = ties(self.predictions, 0, self.model_error)
        said = _listed([self.predictions[i].algo for i in equals]) if equals else "no other"
        if len(equals) > _FEW:
            said = f"{len(equals)} others, of the ranks {_ranks(equals)}"
        lead = (
            f"Simulated: {first.algo} reaches {self.target.value:g} first, in {first.time_s:.3g} s"
        )
        return f"{lead}{self._against_baseline()}; it ties with {said}."

    def verdict(self) -> str:
        """Whether real runs came in the predicted order, where that was not called a tie. Of two
        that both missed the target nobody knows.
        """
        pairs = list(combinations(self._chosen(), 2))
        known = [pair for pair in pairs if not all(math.isinf(self._measured_s(p)) for p in pair)]
        turned = [(a, b) for a, b in known if self._measured_s(a) > self._measured_s(b)]
        tied = [pair for pair in known if predictions_tie(*pair, self.model_error)]
        wrong = [f"{a.algo} before {b.algo}" for a, b in turned if (a, b) not in tied]
        result = f"failed ({_listed(wrong)} was predicted)" if wrong else "held"
        said = f"Measured: of {counted(len(pairs), 'pair')} of the first {len(self.measured_s)}"
        if known != pairs:
            said += f", in {len(pairs) - len(known)} both missed the target"
        if not known:
            return f"{said}: nothing is known of the advice."
        return (
            f"{said}, {len(known) - len(turned)} came in the predicted order, and "
            f"{len(tied)} had been called ties: the advice {result}."
        )

    def _chosen(self) -> list[Prediction]:
        return [p for p in self.predictions if p.algo in self.measured_s]

    def _measured_s(self, prediction: Prediction) -> float:
        return float(np.median(self.measured_s[prediction.algo]))

    def _against_baseline(self) -> str:
        """Such as ", 2.4 times sooner than allreduce: 65 steps of 30 ms instead of 60 of 78"."""
        first = self.predictions[0]
        baseline = next((p for p in self.predictions if p.algo == BASELINE), first)
        if baseline is first:
            return ""
        if math.isinf(baseline.time_s):
            return f", which {BASELINE} misses"
        ratio = baseline.time_s / first.time_s
        steps, steps_then = (p.median(lambda o: o.num_steps) for p in (first, baseline))
        ms, ms_then = (1e3 * p.median(lambda o: o.step_s) for p in (first, baseline))
        return (
            f", {ratio:.3g} times sooner than {BASELINE}: {steps:g} steps of {ms:.3g} ms instead "
            f"of {steps_then:g} of {ms_then:.3g}"
        )

    @property
    def _aim(self) -> str:
        return ACCURACY if self.target.metric == ACCURACY else "target"

    def _columns(self) -> dict[str, list[str]]:
        shown = self.predictions
        columns = {
            "rank": ["-" if math.isinf(p.time_s) else str(i) for i, p in enumerate(shown, 1)],
            "algorithm": [p.algo for p in shown],
            f"predicted time to {self._aim} (s)": [_times(p.times_s, _missed(p)) for p in shown],
        }
        if self.measured_s:
            measured = [self.measured_s.get(p.algo) for p in shown]
            columns["measured (s)"] = ["" if times is None else _times(times) for times in measured]
        return columns | {
            "steps": [f"{p.median(lambda o: o.num_steps):g}" for p in shown],
            "ms a step": [_number(p.median(lambda o: 1e3 * o.step_s), ".3g") for p in shown],
            "MB sent a worker": [
                _number(p.median(lambda o: o.bytes_sent / 1e6), ",.1f") for p in shown
            ],
            "exposed communication": [
                _number(p.median(lambda o: o.exposed_share), ".0%") for p in shown
            ],
            "ties with": [_ranks(ties(shown, i, self.model_error)) for i in range(len(shown))],
        }


def _missed(prediction: Prediction) -> str:
    """Such as ", best 0.941" where no seed reached the target, and how many of them diverged."""
    diverged = f", diverged ({prediction.num_diverged}/{len(prediction.outcomes)})"
    said = diverged if prediction.num_diverged else ""
    if prediction.num_missed < len(prediction.outcomes) or math.isnan(prediction.score):
        return said
    return f"{said}, best {prediction.score:.3f}"


def _times(times_s: Sequence[float], if_missed: str = "") -> str:
    """Such as "3.21 (2.95 to 3.40)", "3.21 (2.95 to missed)" or "missed (2/3)"; no interval where
    it is unknown.
    """
    median = float(np.median(times_s))
    if math.isinf(median):
        num_missed = sum(map(math.isinf, times_s))
        return f"missed ({num_missed}/{len(times_s)}){if_missed}"
    low, high = median_interval(times_s)
    if math.isnan(low):
        return _number(median, ".3g")
    return f"{median:.3g} ({_number(low, '.3g')} to {_number(high, '.3g')})"


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return "-"
    return "missed" if math.isinf(value) else format(value, form)


def _ranks(indices: Sequence[int]) -> str:
    """Such as "1-3, 5", counted from 1."""
    runs: list[list[int]] = []
    for rank in (index + 1 for index in indices):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
