"""The page on whether real and simulated workers need equally many steps."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence

from experiments.report.statistics import detectable_shift, holm, ratio_interval
from experiments.validation.agreement.pairs import POINTS, ROUNDING, Compared
from host import markdown
from host.words import counted, listed

_LEVEL = 0.05

_STUDY = (
    "([what was run](../../conf/experiment/real_and_simulated.yaml), [the "
    "study](../../conf/study/real_and_simulated.yaml))"
)
"""Links of the page of that study, from where git keeps it."""

_NUMERALS = (
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)

_HEADERS = (
    *("algorithm", "target", "steps, real", "steps, simulated", "missed"),
    *("one trajectory", "losses apart", "equal steps", "real / simulated"),
    *("p", "seen alone", "seen on the page"),
)

_NOTES = f"""\
"steps" are the median and the range of the first evaluation at the target or above it; a miss
counts as the evaluation after the last. Workers that wait for nobody (async) are evaluated when the
last of them has done so many steps, and the others have done more: their steps are the mean
worker's. "one trajectory": in so many seeds the losses on the
validation set of real and simulated workers differ by {ROUNDING:g} of their size or less at every
evaluation, which is rounding. "losses apart": by how much they differ at most, over all seeds.
"real / simulated": the 95 % interval of the median of the pairs' ratios. "p": of the test below; an
asterisk marks those that Holm's correction over the page tells from chance. "seen alone" and "seen
on the page": the ratio of steps that the test would have told from chance in 80 % of cases, at
p = {_LEVEL:g} and at the first level of Holm's correction, by a Monte Carlo of pairs whose
differences spread as these do; "-" where these do not spread. Algorithms of one trajectory in every
seed are not tested, and do not count in the correction: exchanging the two of a pair changes
nothing of theirs, nor which algorithms these are.
"""

_TEST = """\
**The test.** A real and a simulated run of a seed begin with the same weights and see the same
examples. So they make a pair, and if both are drawn from one distribution, either could have been
the real one: the test exchanges the two of a pair, in all ways, and asks how many of these give a
mean of the logarithms of real over simulated steps as far from 0. It is exact, whatever steps are
distributed like, and asks about their middle, not about their spread. Pairs of one trajectory
differ by nothing, so that the seed's own share, which is most of the spread, does not hide what is
left. A test that leaves the seeds aside (Mann-Whitney) would hide it.
"""


def page(compared: Sequence[Compared], command: str, is_study: bool = False) -> str:
    """What git keeps of it, as Markdown; `is_study`: it is the page of the study
    `real_and_simulated`.
    """
    numbers = [len(own.real) for own in compared]
    alike = [own.algo for own in compared if own.is_same]
    tested = [own for own in compared if not own.is_same]
    told = holm([own.p_value for own in tested], len(tested))
    differ = [own.algo for own, is_told in zip(tested, told, strict=True) if is_told]
    workers = _numerals([own.workers for own in compared])
    learned = "; ".join(dict.fromkeys(f"{own.task}, {own.model}" for own in compared))
    parts = [
        "# Do real and simulated workers need equally many steps?",
        f"{_seeds(numbers)} of each of {counted(len(compared), 'algorithm')}, with {workers} "
        f"real workers (gloo, processes of one host) and with {workers} simulated ones "
        f"{_STUDY if is_study else f'({learned})'}. Each algorithm has a target of its "
        f"own, fixed before these runs: {POINTS:g} points below the median best accuracy of "
        f"simulated runs with other seeds. `{command}` made this page from the records.",
        _findings(alike, tested, differ),
        markdown.table(
            _HEADERS, _rows(compared, len(tested), differ), "l" + "r" * (len(_HEADERS) - 1)
        ),
        _NOTES,
        _TEST,
    ]
    return "\n\n".join(map(_filled, parts)) + "\n"


def _seeds(numbers: Sequence[int]) -> str:
    """Such as "10 seeds" or "4 to 10 seeds"."""
    low, high = min(numbers), max(numbers)
    return counted(high, "seed") if low == high else f"{low} to {high} seeds"


def _numerals(numbers: Sequence[int]) -> str:
    """Such as "four" or "two to four"; more than twelve in digits."""
    ends = dict.fromkeys((min(numbers), max(numbers)))
    return " to ".join(_NUMERALS[n] if n < len(_NUMERALS) else f"{n:,}" for n in ends)


def _findings(alike: list[str], tested: Sequence[Compared], differ: list[str]) -> str:
    others = [own.algo for own in tested]
    said = []
    if alike:
        said.append(
            f"**{len(alike)} of {len(alike) + len(tested)} algorithms have one trajectory with "
            f"real and with simulated workers, up to rounding, in every seed**: {listed(alike)}."
        )
    if others:
        said.append(
            f"Of {listed(others)} some trajectories part: an average may arrive at another step "
            "(async), and a code or an orthogonalization may make much of a rounding. There only "
            "distributions can be compared."
        )
    if differ:
        ratios = [f"{_ratio(own)} ({own.algo})" for own in tested if own.algo in differ]
        said.append(
            f"**The steps of {listed(differ)} are not of one distribution**, by Holm's correction "
            f"over the page: real workers need {listed(ratios)} times as many as simulated ones."
        )
    elif others:
        said.append(
            "By Holm's correction over the page **no algorithm's steps are told from one "
            "distribution**; the last columns say what would have been."
        )
    return " ".join(said)


def _rows(compared: Sequence[Compared], num_tested: int, differ: Sequence[str]) -> list[list[str]]:
    rows = []
    for own in compared:
        num_seeds = len(own.real)
        rows.append(
            [
                own.algo,
                f"{own.target:.3f}",
                _range(own.real),
                _range(own.simulated),
                f"{own.num_missed}",
                f"{own.num_same}/{num_seeds}",
                f"{own.apart:.1g}",
                f"{own.num_equal}/{num_seeds}",
                _ratio(own),
                "-" if own.is_same else f"{own.p_value:.3f}" + " *" * (own.algo in differ),
                _seen(own, _LEVEL),
                _seen(own, _LEVEL / max(num_tested, 1)),
            ]
        )
    return rows


def _ratio(own: Compared) -> str:
    """The interval of real over simulated steps; "-" where there is none."""
    low, high = ratio_interval(own.real, own.simulated, paired=True)
    return "-" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def _range(steps: Sequence[float]) -> str:
    return f"{statistics.median(steps):g} ({min(steps):g} to {max(steps):g})"


def _seen(own: Compared, level: float) -> str:
    if own.spread == 0:
        return "-"
    shift = detectable_shift(len(own.real), level)
    return "none" if math.isinf(shift) else f"{math.exp(shift * own.spread):.2f}"


def _filled(text: str) -> str:
    if text.startswith(("#", "|")):
        return text
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
