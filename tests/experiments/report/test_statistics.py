import csv
import math
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.report import statistics
from experiments.report.statistics import (
    RATE_CLASSES_MBIT,
    best_by_accuracy,
    best_by_steps,
    is_tie,
    mean_half_width,
    median_interval,
    prediction_error,
    proportion_interval,
    ratio_interval,
)
from netsim.conditions.presets import read_condition
from tests.paths import ROOT


def test_the_interval_of_few_values_is_their_range():
    assert median_interval([5.0, 5.0, 5.0]) == (5.0, 5.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([1.0, 2.0, math.inf]) == (1.0, math.inf)
    assert median_interval([math.inf] * 3) == (math.inf, math.inf)


@pytest.mark.parametrize("size", [10, 25, 400])
def test_the_interval_agrees_with_scipys(size):
    sample = np.random.default_rng(1).normal(size=size)
    low, high = median_interval(sample)
    theirs = stats.bootstrap(
        (sample,), np.median, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.1 * width)
    assert high == pytest.approx(theirs.high, abs=0.1 * width)


def test_the_ratio_of_few_values_spans_what_their_ranges_allow():
    assert ratio_interval([2.0, 4.0, 3.0], [1.0, 1.0, 1.0], paired=False) == (2.0, 4.0)
    assert ratio_interval([2.0, 4.0, 3.0], [1.0, 2.0, 1.5], paired=False) == (1.0, 4.0)


def test_the_ratio_is_of_values_that_are_drawn_apart():
    # Drawn together, the ratio of a sample to itself would always be 1.
    sample = np.random.default_rng(1).lognormal(size=20)
    low, high = ratio_interval(sample, sample, paired=False)
    assert low < 0.9 and high > 1.1


def test_a_miss_in_a_ratio_is_infinite_and_two_are_equal():
    never = [math.inf] * 3
    assert ratio_interval(never, [1.0, 2.0, 3.0], paired=False) == (math.inf, math.inf)
    assert ratio_interval([1.0, 2.0, 3.0], never, paired=False) == (0.0, 0.0)
    assert ratio_interval(never, never, paired=False) == (1.0, 1.0)


def test_a_proportion_of_all_or_nothing_is_not_certain():
    low, high = proportion_interval(3, 3)
    assert (round(low, 2), high) == (0.44, pytest.approx(1.0))
    assert proportion_interval(0, 3)[0] == pytest.approx(0.0, abs=1e-12)


def test_the_ratio_of_pairs_is_of_the_same_seeds():
    sample = np.random.default_rng(1).lognormal(size=20)
    assert ratio_interval(2 * sample, sample, paired=True) == (2.0, 2.0)
    assert ratio_interval([math.inf] * 3, [math.inf] * 3, paired=True) == (1.0, 1.0)


def test_the_interval_of_a_mean_is_students():
    # 2 values: 12.706 standard errors of the mean, which is 1 here.
    assert mean_half_width([81.0, 83.0]) == pytest.approx(12.706, rel=1e-4)
    assert math.isnan(mean_half_width([81.0]))


@pytest.mark.parametrize("paired", [True, False])
def test_ties_are_by_the_interval_of_the_ratio_or_by_equal_medians(paired):
    def tie(times, others, model_error=0.0):
        return is_tie(times, others, paired=paired, model_error=model_error)

    assert tie([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])
    assert not tie([1.0, 1.0, 1.0], [1.1] * 3)
    assert tie([1.0, 1.0, 1.0], [1.1] * 3, model_error=0.11)
    assert not tie([math.inf] * 3, [5.0] * 3, model_error=0.3)
    assert tie([2.0], [2.0])


def test_pairs_tell_apart_what_varies_alike():
    times = [1.0, 2.0, 3.0]
    slower = [1.1 * time for time in times]
    assert not is_tie(times, slower, paired=True, model_error=0.0)
    assert is_tie(times, slower, paired=False, model_error=0.0)


def test_few_seeds_have_no_interval_so_the_medians_decide():
    assert not is_tie([1.0, 3.0], [2.0, 2.5], paired=False, model_error=0.0)
    assert is_tie([1.0, 3.0], [2.0, 2.5], paired=False, model_error=0.13)


def test_the_two_rules_for_the_best_rate_differ_by_their_question():
    runs = pd.DataFrame(
        {
            "lr_scale": [1.0, 1.0, 3.0, 3.0],
            "status": ["completed"] * 4,
            "validation_accuracy": [0.90, 0.92, 0.94, 0.95],
        }
    )
    assert set(best_by_accuracy(runs).lr_scale) == {3.0}
    settings = pd.DataFrame(
        {
            "lr_scale": [1.0, 3.0],
            "reached": [1.0, 1.0],
            "steps_to_accuracy": [100.0, 120.0],
            "validation_score": [0.91, 0.945],
            "metric": ["accuracy"] * 2,
        }
    )
    assert list(best_by_steps(settings).lr_scale) == [1.0]
    missed = settings.assign(steps_to_accuracy=float("inf"))
    assert list(best_by_steps(missed).lr_scale) == [3.0]
    assert list(best_by_steps(missed.assign(metric="loss")).lr_scale) == [1.0]


def test_the_errors_of_predictions_are_those_of_the_committed_table():
    """Where the table was made anew, copy its row into predicted_errors.csv."""
    lines = (ROOT / "results" / "reference" / "predicted.md").read_text().splitlines()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]
    (errors,) = [row for row in rows if row[0] == "mean absolute error"]
    committed = {
        net: float(error.removesuffix(" %")) / 100
        for net, error in zip(rows[0][1:], errors[1:], strict=True)
    }
    shipped = list(csv.DictReader(_table().splitlines()))
    assert {row["network"]: float(row["mean_absolute_error"]) for row in shipped} == committed
    for row in shipped:
        rate = float(row["rate_mbit"]) if row["rate_mbit"] else None
        assert rate == read_condition(row["network"]).rate_mbit


def _table():
    return (resources.files(statistics.__package__) / "predicted_errors.csv").read_text()


def test_the_error_is_the_largest_of_the_networks_in_the_class():
    assert [prediction_error(rate) for rate in RATE_CLASSES_MBIT] == [0.13, 0.22, 0.31]
    assert [prediction_error(rate) for rate in (10, 200.1, 2500, None)] == [0.13, 0.22, 0.31, 0.31]
