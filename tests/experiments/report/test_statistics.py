import math

import numpy as np
import pytest
from scipy import stats

from experiments.report.statistics import bootstrap_interval, proportion_interval, ratio_interval


def test_the_interval_of_few_values_is_their_range():
    assert bootstrap_interval([5.0, 5.0, 5.0]) == (5.0, 5.0)
    assert bootstrap_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert bootstrap_interval([1.0, 2.0, math.inf]) == (1.0, math.inf)
    assert bootstrap_interval([math.inf] * 3) == (math.inf, math.inf)


@pytest.mark.parametrize("size", [10, 25, 400])
def test_the_interval_agrees_with_scipys(size):
    sample = np.random.default_rng(1).normal(size=size)
    low, high = bootstrap_interval(sample)
    theirs = stats.bootstrap(
        (sample,), np.median, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.1 * width)
    assert high == pytest.approx(theirs.high, abs=0.1 * width)


def test_the_ratio_of_few_values_spans_what_their_ranges_allow():
    assert ratio_interval([2.0, 4.0, 3.0], [1.0, 1.0, 1.0]) == (2.0, 4.0)
    assert ratio_interval([2.0, 4.0, 3.0], [1.0, 2.0, 1.5]) == (1.0, 4.0)


def test_the_ratio_is_of_values_that_are_drawn_apart():
    # Drawn together, the ratio of a sample to itself would always be 1.
    sample = np.random.default_rng(1).lognormal(size=20)
    low, high = ratio_interval(sample, sample)
    assert low < 0.9 and high > 1.1


def test_a_miss_in_a_ratio_is_infinite_and_two_are_equal():
    never = [math.inf] * 3
    assert ratio_interval(never, [1.0, 2.0, 3.0]) == (math.inf, math.inf)
    assert ratio_interval([1.0, 2.0, 3.0], never) == (0.0, 0.0)
    assert ratio_interval(never, never) == (1.0, 1.0)


def test_a_proportion_of_all_or_nothing_is_not_certain():
    low, high = proportion_interval(3, 3)
    assert (round(low, 2), high) == (0.44, pytest.approx(1.0))
    assert proportion_interval(0, 3)[0] == pytest.approx(0.0, abs=1e-12)
