"""The rules by which numbers of several seeds are summed up and compared: each is here once.

    interval of a median    `median_interval`: times, in which a miss is infinite
    interval of a mean      Student's t: accuracies, which are always finite
    ties                    `is_tie`: of two algorithms, reports and advice
    ties on a page          `p_values` and `holm`: beside `is_tie`, for reports of many comparisons
    constants of intervals  `order_place` and `students`: for a page that computes its own
    one distribution        `flip_p_value`: of pairs, such as real and simulated runs of a seed
    best learning rate      `best_by_accuracy` and `best_by_steps`, for two different questions
    error of predictions    `prediction_error`: how far predicted times are off

Intervals of 95 %: of six seeds or more by their order (Hettmansperger and Sheather 1986), whatever
they are distributed like. Of three to five seeds no order gives 95 %, and a bootstrap's covers the
median 75 % of the time. For these it is Student's t of the logarithms, right where these are
normal.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.tasks.target import LOWER_IS_BETTER

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[float, float]
Array = NDArray[np.float64]

ALIKE = 1.05
"""Steps and bytes that differ by less tie: they are read off a line between two evaluations."""
MAX_PAIRS = 16
"""That `flip_p_value` takes, since it tries all ways to exchange the two of a pair."""

MIN_SEEDS = 3
"""Fewer runs have no interval."""

UNKNOWN: Interval = (math.nan, math.nan)

RATE_CLASSES_MBIT = (200.0, 1000.0, math.inf)
"""The upper ends of the classes of networks whose predicted times are off by about as much."""

BY_ORDER_SEEDS = 6
"""With fewer, the median lies beyond all values more than once in 20 times."""

_LEVEL = 0.95
_POWER = 0.8
_SUMS_AT_ONCE = 1 << 21
"""Of 8 bytes."""


def median_interval(values: Sequence[float] | Array) -> Interval:
    """The 95 % interval of the median; values and bounds may be inf.

    `UNKNOWN` for fewer than `MIN_SEEDS` values, and for fewer than `BY_ORDER_SEEDS` some of which,
    but not all, are inf.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < MIN_SEEDS:
        return UNKNOWN
    if (values <= 0).any() or (values == values[0]).all():
        return _interval(values)
    return _exp(_interval(_logs(values)))


def mean_half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean (Student's t); NaN for one value."""
    if len(values) < 2:
        return math.nan
    deviation = statistics.stdev(values) / math.sqrt(len(values))
    return students(len(values) - 1) * deviation


@lru_cache(maxsize=4096)
def proportion_interval(num_successes: int, num_trials: int) -> Interval:
    """Wilson's 95 % interval of a probability."""
    interval = stats.binomtest(num_successes, num_trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def ratio_interval(
    values: Sequence[float] | Array, others: Sequence[float] | Array, *, paired: bool
) -> Interval:
    """The 95 % interval of how many times `others` the `values` are, both positive or inf.

    `paired`: the k-th of both are of the same seed, and it is the interval of the median of the
    pairs' ratios, in which two misses count as 1. Else it is Welch's, of the logarithms; `UNKNOWN`
    where some values of either, but not all, are inf.
    """
    values, others = np.asarray(values, float), np.asarray(others, float)
    if paired:
        return _exp(_interval(_logs(_ratios(values, others))))
    infinite = np.isinf(values), np.isinf(others)
    if any(which.any() for which in infinite):
        alike = all(which.all() or not which.any() for which in infinite)
        ratio = float(_ratios(values[:1], others[:1])[0])
        return (ratio, ratio) if alike else UNKNOWN
    return _welch(np.log(values), np.log(others))


def ratio(
    values: Sequence[float] | Array, others: Sequence[float] | Array, *, paired: bool
) -> float:
    """How many times `others` the `values` are, both positive or inf: what `ratio_interval` is the
    interval of, and in which it lies. It need not be the ratio of the two medians.

    `paired`: the median of the pairs' ratios; NaN where it lies between a miss of either. Else the
    ratio of the means of the logarithms; NaN where one is inf.
    """
    values, others = np.asarray(values, float), np.asarray(others, float)
    with np.errstate(invalid="ignore"):
        if paired:
            return float(np.exp(np.median(_logs(_ratios(values, others)))))
        known = np.isfinite(values).all() and np.isfinite(others).all()
        return float(np.exp(_logs(values).mean() - _logs(others).mean())) if known else math.nan


def is_tie(
    times: Sequence[float], others: Sequence[float], *, paired: bool, model_error: float
) -> bool:
    """Whether neither of two algorithms can be called the faster one.

    They tie where their medians are equal, or where the interval of the ratio of their times,
    widened to both sides by `model_error`, holds 1. With fewer than `MIN_SEEDS` times of either
    there is no interval: then the ratio of the medians stands in its place. Where misses leave the
    interval unknown, they tie unless all times of one are below all of the other.

    Args:
        times: to accuracy, inf for a miss.
        others: of the other algorithm.
        paired: whether the k-th times of both are of the same seed. So it is with predicted times
            by construction; recorded runs may differ in their seeds.
        model_error: the relative error of the times, 0 for times that are compared as they are;
            for predicted ones `prediction_error`.
    """
    median, other = float(np.median(times)), float(np.median(others))
    if median == other:
        return True
    if min(len(times), len(others)) < MIN_SEEDS:
        low = high = float(_ratios(np.array(median), np.array(other)))
    else:
        low, high = ratio_interval(times, others, paired=paired)
    if math.isnan(low):
        tops, bottoms = np.array([min(times), max(times)]), np.array([max(others), min(others)])
        low, high = _ratios(tops, bottoms).tolist()
    return low / (1 + model_error) <= 1 <= high * (1 + model_error)


def p_values(times: Sequence[Sequence[float]], *, paired: bool) -> list[float]:
    """How likely each of the further `times` would differ from the first ones by chance as much.

    The t test of the means of the logarithms, with the deviation of all algorithms together, or
    that of the two where it is greater: three times of two algorithms hardly tell it, those of
    twenty do. A miss counts as the
    longest time of the algorithm, which makes it seem less slow; 1 for one that has only missed.

    Args:
        times: to accuracy, of each algorithm; the first have no miss, or all p-values are 1.
        paired: whether the k-th times of all are of the same seed, whose share is taken out.
    """
    logs = [_without_misses(np.asarray(own, float)) for own in times]
    known = [own for own in logs if own is not None]
    if logs[0] is None or np.isinf(times[0]).any() or len(known) < 2:
        return [1.0] * (len(times) - 1)
    if paired:
        table = np.array(known)
        rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    else:
        rest = np.concatenate([own - own.mean() for own in known])
        freedom = sum(len(own) - 1 for own in known)
    variance = float((rest**2).sum()) / freedom if freedom else math.nan
    return [
        1.0
        if own is None
        else _p_value(logs[0], own, max(variance, _variance(logs[0], own, paired)), freedom)
        for own in logs[1:]
    ]


def holm(chances: Sequence[float], num_comparisons: int) -> list[bool]:
    """Which of these p-values are told from chance, so that at most one page in 20 has a wrong one.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979). `num_comparisons` is how many there
    could be; those that are not among `chances` count as not told from chance.
    """
    order = sorted(range(len(chances)), key=lambda k: chances[k])
    told = [False] * len(chances)
    for rank, k in enumerate(order):
        if not chances[k] <= (1 - _LEVEL) / (num_comparisons - rank):
            break
        told[k] = True
    return told


def flip_p_value(values: Sequence[float], others: Sequence[float]) -> float:
    """How likely the logarithms of `values` and `others`, of which the k-th make a pair, would
    differ in their mean as much, if in each pair either could be the one as well as the other.

    Exact, whatever they are distributed like: over all ways to exchange the two of a pair (Fisher
    1935). All values are positive and finite, and there are at most `MAX_PAIRS` pairs.
    """
    return float(_flipped(np.log(np.asarray(values) / np.asarray(others))[None])[0])


@cache
def detectable_shift(num_pairs: int, level: float) -> float:
    """By how many standard deviations of the pairs' differences their mean has to be off for
    `flip_p_value` to be `level` or less in 80 % of cases, by a Monte Carlo of normal differences;
    inf where so few pairs never tell as much.
    """
    if 2 ** (1 - num_pairs) > level:
        return math.inf
    drawn = np.random.default_rng(0).standard_normal((2000, num_pairs))
    low, high = 0.0, 10.0
    for _ in range(12):
        shift = (low + high) / 2
        found = float((_flipped(drawn + shift) <= level).mean())
        low, high = (low, shift) if found >= _POWER else (shift, high)
    return high


def best_by_accuracy(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of one algorithm at the best of its `lr_scale`s, after equally many steps.

    For runs that all do the same steps: the question is what accuracy these lead to. The best is
    the rate at which the greatest share of seeds completed, then the one with the highest mean
    accuracy on the validation set, then the lowest. A run without an accuracy counts as 0.
    """
    rates = [group for _, group in runs.groupby("lr_scale")]
    return max(
        rates,
        key=lambda group: (
            (group.status == "completed").mean(),
            float(group.validation_accuracy.fillna(0).mean()),
        ),
    )


def best_by_steps(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings of one algorithm that tie as its best, in steps to the target.

    For runs that end at a target. The best are the settings that the greatest share of seeds
    reached it with, and of these those whose median run took the fewest steps. Where every median
    run misses, or there is no target, those of the best score on the validation set, if any.
    """
    settings = settings.loc[settings.reached == settings.reached.max()]
    fewest = settings.steps_to_accuracy.min()
    if fewest < math.inf:  # neither a miss nor without a target
        return settings.loc[settings.steps_to_accuracy <= ALIKE * fewest]
    is_lower = [bool(LOWER_IS_BETTER.get(metric)) for metric in settings["metric"]]
    scores = settings.validation_score.mask(is_lower, -settings.validation_score)
    return settings.loc[scores == scores.max()]


def prediction_error(rate_mbit: float | None) -> float:
    """By how much a predicted time is off, relative, on a network of that rate; None: unlimited.

    It is the mean absolute error of mean step times, simulated against measured, and of the
    validated networks in the same class of `RATE_CLASSES_MBIT` the largest. A time to accuracy is
    the seconds of a step by the number of steps, which simulated workers need as real ones do
    (results/real_and_simulated).
    """
    rate = math.inf if rate_mbit is None else rate_mbit
    return prediction_errors()[next(end for end in RATE_CLASSES_MBIT if rate <= end)]


@cache
def prediction_errors() -> dict[float, float]:
    """The error of each class of `RATE_CLASSES_MBIT`, from the committed validation.

    predicted_errors.csv holds the column "mean absolute error" of results/validation/time.md, since
    an installed package has no results.
    """
    errors = dict.fromkeys(RATE_CLASSES_MBIT, 0.0)
    file = resources.files("experiments.report") / "predicted_errors.csv"
    for row in csv.DictReader(file.read_text().splitlines()):
        rate = float(row["rate_mbit"] or math.inf)
        end = next(end for end in RATE_CLASSES_MBIT if rate <= end)
        errors[end] = max(errors[end], float(row["mean_absolute_error"]))
    return errors


@lru_cache(maxsize=4096)
def students(freedom: float) -> float:
    """By how many standard errors a 95 % interval of Student's t goes to each side."""
    return float(stats.t.ppf((1 + _LEVEL) / 2, freedom))


@cache
def order_place(size: int) -> tuple[int, float]:
    """Where the 95 % interval of the median of `size` ordered values begins: the rank k, from 1, of
    the lower value, and the share of the way to the next.

    covered(k) = 1 - 2 P(Binomial(n, 1/2) < k)
    i          = (covered(k) - 0.95) / (covered(k) - covered(k + 1))
    share      = (n - k) i / (k + (n - 2 k) i)
    """
    covered = 1 - 2 * stats.binom.cdf(np.arange(size + 1) - 1, size, 0.5)
    rank = int(np.flatnonzero(covered >= _LEVEL)[-1])
    excess = (covered[rank] - _LEVEL) / (covered[rank] - covered[rank + 1])
    return rank, float((size - rank) * excess / (rank + (size - 2 * rank) * excess))


def _flipped(differences: Array) -> Array:
    """The p-value of each row of `differences [rows, pairs]`, over all of their signs."""
    num_pairs = differences.shape[1]
    assert num_pairs <= MAX_PAIRS, "there are 2 ** num_pairs signs"
    bits = np.arange(2**num_pairs)[:, None] >> np.arange(num_pairs) & 1
    signs = 1.0 - 2.0 * bits.T
    shares = []
    for begin in range(0, len(differences), rows := max(1, _SUMS_AT_ONCE >> num_pairs)):
        sums = np.abs(differences[begin : begin + rows] @ signs)  # the first has all as they are
        shares.append((sums >= sums[:, :1] * (1 - 1e-9)).mean(axis=1))
    return np.concatenate(shares)


def _ratios(tops: Array, bottoms: Array) -> Array:
    """Of each pair; 1 where both are equal, two misses among them."""
    with np.errstate(invalid="ignore", divide="ignore"):  # inf / inf, and times of 0
        return np.where(tops == bottoms, 1.0, tops / bottoms)


def _logs(values: Array) -> Array:
    with np.errstate(divide="ignore"):  # a time of 0 of another
        return np.log(values)


def _exp(bounds: Interval) -> Interval:
    low, high = (float(bound) for bound in np.exp(np.asarray(bounds)))
    return low, high


def _interval(values: Array) -> Interval:
    """Of the median of numbers that may be inf or -inf."""
    ordered = np.sort(values)
    if ordered[0] == ordered[-1]:
        return float(ordered[0]), float(ordered[0])
    if len(ordered) >= BY_ORDER_SEEDS:
        low, high = _by_order(ordered), -_by_order(-ordered[::-1])
        return low, high
    if np.isinf(ordered).any():
        return UNKNOWN
    middle, half = float(ordered.mean()), mean_half_width(ordered.tolist())
    return middle - half, middle + half


def _by_order(ordered: Array) -> float:
    """The lower bound: between the two values whose own intervals cover more and less than 95 %."""
    rank, share = order_place(len(ordered))
    lower, upper = float(ordered[rank - 1]), float(ordered[rank])
    # Between a number and inf there is nothing to interpolate.
    return lower if math.isinf(upper) or math.isinf(lower) else lower + share * (upper - lower)


def _without_misses(times: Array) -> Array | None:
    """The logarithms, a miss as the longest time; None where all are misses, or a time is 0."""
    finite = times[np.isfinite(times)]
    if not len(finite) or (finite <= 0).any():
        return None
    return np.log(np.minimum(times, finite.max()))


def _p_value(logs: Array, others: Array, variance: float, freedom: int) -> float:
    difference = abs(float(logs.mean() - others.mean()))
    error = math.sqrt(variance * (1 / len(logs) + 1 / len(others)))
    if error == 0:
        return 0.0 if difference > 0 else 1.0
    return float(2 * stats.t.sf(difference / error, freedom))


def _variance(logs: Array, others: Array, paired: bool) -> float:
    """Of one time of these two algorithms alone."""
    if paired:
        return float((logs - others).var(ddof=1)) / 2
    return float(logs.var(ddof=1) + others.var(ddof=1)) / 2


def _welch(logs: Array, others: Array) -> Interval:
    middle = float(logs.mean() - others.mean())
    errors = [float(sample.var(ddof=1)) / len(sample) for sample in (logs, others)]
    variance = sum(errors)
    if variance == 0:
        return math.exp(middle), math.exp(middle)
    freedom = variance**2 / sum(
        error**2 / (len(sample) - 1) for error, sample in zip(errors, (logs, others), strict=True)
    )
    half = students(freedom) * math.sqrt(variance)
    return math.exp(middle - half), math.exp(middle + half)
