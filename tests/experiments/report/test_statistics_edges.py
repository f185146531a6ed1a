"""Statistics at their edges: times of 0, equal numbers, what only many algorithms show together.
Expected numbers come from definitions, by least squares, or from SciPy's own tests.
"""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from experiments.report.statistics import (
    best_by_accuracy,
    detectable_shift,
    is_tie,
    median_interval,
    p_values,
)

STUDENTS_OF_3 = 4.30265


def test_a_time_of_0_has_no_logarithm_so_the_interval_is_of_the_times():
    half = STUDENTS_OF_3 / math.sqrt(3)
    assert median_interval([0.0, 1.0, 2.0]) == pytest.approx((1 - half, 1 + half), rel=1e-5)


def test_two_equal_values_of_three_are_no_interval_without_width():
    middle, half = math.log(2) / 3, STUDENTS_OF_3 * math.log(2) / 3
    expected = (math.exp(middle - half), math.exp(middle + half))
    assert median_interval([2.0, 1.0, 1.0]) == pytest.approx(expected, rel=1e-5)


def test_equal_medians_tie_whatever_the_pairs_say():
    """Nine of ten pairs are faster, and the order of ten covers the median by the inner eight."""
    times, others = [float(k) for k in range(1, 11)], [float(k % 10 + 1) for k in range(1, 11)]
    assert is_tie(times, others, paired=True, model_error=0.0)
    assert not is_tie([time - 0.01 for time in times], others, paired=True, model_error=0.0)


def test_a_time_that_both_have_keeps_the_ranges_together():
    some_miss = [8.0, math.inf, 9.0]
    assert is_tie(some_miss, [1.0, 2.0, 8.0], paired=False, model_error=0.0)
    assert is_tie([1.0, 2.0, 8.0], some_miss, paired=False, model_error=0.0)


def test_a_miss_that_both_have_keeps_the_ranges_together():
    for paired in (True, False):
        assert is_tie([math.inf] * 3, [1.0, 2.0, math.inf], paired=paired, model_error=0.0)
        assert is_tie([1.0, 2.0, math.inf], [math.inf] * 3, paired=paired, model_error=0.0)


def pooled(times, compared, paired):
    """The p-values of `compared` against the first, by least squares over all of `times`."""
    logs = np.log(times)
    num_algos, num_seeds = logs.shape
    algos = np.kron(np.eye(num_algos), np.ones((num_seeds, 1)))
    seeds = np.kron(np.ones((num_algos, 1)), np.eye(num_seeds))
    columns = np.hstack([algos, seeds]) if paired else algos
    fitted = columns @ np.linalg.lstsq(columns, logs.ravel(), rcond=None)[0]
    freedom = logs.size - int(np.linalg.matrix_rank(columns))
    variance = float(((logs.ravel() - fitted) ** 2).sum()) / freedom
    t = [
        abs(logs[0].mean() - logs[k].mean()) / math.sqrt(2 * variance / num_seeds) for k in compared
    ]
    return [2 * stats.t.sf(one, freedom) for one in t]


@pytest.mark.parametrize("paired", [True, False])
def test_the_deviation_of_all_is_that_of_least_squares(paired):
    """The first two deviate less than the others, so that of all counts."""
    chance = np.random.default_rng(2)
    spread = np.array([[0.1], [0.1], [0.6], [0.6]])
    seeds = 0.5 * chance.standard_normal((1, 5)) * paired
    times = np.exp([[0.0], [0.4], [0.8], [1.2]] + seeds + spread * chance.standard_normal((4, 5)))
    assert p_values(times, paired=paired)[0] == pytest.approx(pooled(times, [1], paired)[0])


@pytest.mark.parametrize("paired", [True, False])
def test_where_two_deviate_more_than_all_their_own_deviation_counts(paired):
    chance = np.random.default_rng(3)
    spread = np.array([[0.5], [0.5], [0.01], [0.01], [0.01]])
    times = np.exp([[0.0], [0.7], [1.0], [1.1], [1.2]] + spread * chance.standard_normal((5, 6)))
    test = stats.ttest_rel if paired else stats.ttest_ind
    own = test(np.log(times[0]), np.log(times[1]))
    freedom = 4 * 5 if paired else 5 * 5
    expected = 2 * stats.t.sf(abs(own.statistic), freedom)
    assert p_values(times, paired=paired)[0] == pytest.approx(expected)


def test_times_without_deviation_differ_for_certain_or_not_at_all():
    assert p_values([[1.0] * 4, [math.e] * 4, [1.0] * 4], paired=False) == [0.0, 1.0]


def test_a_time_of_0_is_compared_with_none():
    later, last = [5.0, 6.0, 7.0], [8.0, 9.0, 9.5]
    assert p_values([[0.0, 1.0, 2.0], later], paired=True) == [1.0]
    assert p_values([[0.0, 1.0, 2.0], later, last], paired=True) == [1.0, 1.0]
    assert p_values([[1.0, 2.0, 3.0], [0.0, 6.0, 7.0]], paired=True) == [1.0]
    assert p_values([[1.0, 2.0, 3.0], [0.0, 6.0, 7.0], last], paired=True)[0] == 1.0


def test_a_level_that_only_equal_signs_reach_is_reached():
    """At 2 / 2 ** 5 five differences have to be of one sign, Phi(shift) ** 5 of all cases."""
    of_all_signs = NormalDist().inv_cdf(0.8 ** (1 / 5))
    assert detectable_shift(5, 2 / 32) == pytest.approx(of_all_signs, abs=0.06)
    assert detectable_shift(5, 2 / 33) == math.inf


def test_twelve_pairs_tell_less_than_their_own_deviation():
    """The permutation test has about the power of the t test."""

    def missing(shift):
        far = stats.t.ppf(0.975, 11)
        return stats.nct.sf(far, 11, shift * math.sqrt(12)) - 0.8

    expected = optimize.brentq(missing, 0.1, 5.0)
    assert expected < 0.95
    assert detectable_shift(12, 0.05) == pytest.approx(expected, abs=0.06)


def test_a_rate_at_which_a_seed_was_lost_is_not_the_best():
    runs = pd.DataFrame(
        {
            "lr_scale": [1.0, 1.0, 3.0, 3.0, 9.0, 9.0],
            "status": ["completed"] * 3 + ["diverged"] * 3,
            "validation_accuracy": [0.90, 0.92, 0.98, 0.99, 0.5, 0.6],
        }
    )
    assert set(best_by_accuracy(runs).lr_scale) == {1.0}
    unscored = runs.assign(status="completed", validation_accuracy=[0.9, 0.9, 0.99, None, 0.6, 0.6])
    assert set(best_by_accuracy(unscored).lr_scale) == {1.0}
