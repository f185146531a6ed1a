import csv
import itertools
import math
import tracemalloc
from importlib import resources
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.report import statistics
from experiments.report.places import compared_on_page
from experiments.report.statistics import (
    RATE_CLASSES_MBIT,
    best_by_accuracy,
    best_by_steps,
    detectable_shift,
    flip_p_value,
    holm,
    is_tie,
    mean_half_width,
    median_interval,
    p_values,
    prediction_error,
    proportion_interval,
    ratio_interval,
)
from netsim.conditions.presets import read_condition
from tests.paths import ROOT


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("num_seeds", [3, 4, 5, 6, 10, 11])
def test_a_ratio_lies_in_its_own_interval(num_seeds, paired):
    """That of the medians does not always."""
    draw, outside = np.random.default_rng(num_seeds), 0
    for spread in [0.02, 0.3, 1.0] * 40:
        values, others = np.exp(spread * draw.standard_t(2, (2, num_seeds)))
        low, high = ratio_interval(values, others, paired=paired)
        assert low <= statistics.ratio(values, others, paired=paired) <= high
        outside += not low <= np.median(values) / np.median(others) <= high
    assert outside or num_seeds < 10 or not paired


def test_a_ratio_is_of_pairs_and_knows_misses():
    values = [4.0, 6.0, 90.0]
    assert statistics.ratio(values, [2.0, 3.0, 3.0], paired=True) == pytest.approx(2)
    assert statistics.ratio(values, [1.0, 1.0, 1.0], paired=False) == pytest.approx(2160 ** (1 / 3))
    never = [math.inf] * 3
    assert statistics.ratio(never, values, paired=True) == math.inf
    assert statistics.ratio(values, never, paired=True) == 0
    assert statistics.ratio(never, never, paired=True) == 1
    assert math.isnan(statistics.ratio([*values[:2], math.inf], values, paired=False))


def test_the_interval_of_few_values_is_students_of_their_logarithms():
    assert median_interval([5.0, 5.0, 5.0]) == (5.0, 5.0)
    assert median_interval([math.inf] * 3) == (math.inf, math.inf)
    # 4.303 standard errors of ln 2 / sqrt(3) about ln 2.
    half = 4.30265 * math.log(2) / math.sqrt(3)
    expected = (2 * math.exp(-half), 2 * math.exp(half))
    assert median_interval([4.0, 1.0, 2.0]) == pytest.approx(expected, rel=1e-5)
    assert all(map(math.isnan, median_interval([1.0, 2.0, math.inf])))
    assert all(map(math.isnan, median_interval([1.0, 2.0])))


def test_the_interval_of_six_and_more_goes_by_their_order():
    # 6 values: all of them cover 31 in 32 medians, the inner four 25 in 32; see the paper.
    excess = (31 / 32 - 0.95) / (31 / 32 - 25 / 32)
    share = 5 * excess / (1 + 4 * excess)
    assert median_interval(np.exp(np.arange(6))) == pytest.approx(
        (math.exp(share), math.exp(5 - share))
    )
    # 10 values: the inner eight cover 501 in 512, the inner six 456 in 512.
    excess = (501 / 512 - 0.95) / (501 / 512 - 456 / 512)
    share = 8 * excess / (2 + 6 * excess)
    assert median_interval(np.exp(np.arange(10))) == pytest.approx(
        (math.exp(1 + share), math.exp(8 - share))
    )
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, math.inf])
    assert 1 < low < 2 and high == math.inf
    assert median_interval([1.0, 2.0, 3.0, *[math.inf] * 4])[1] == math.inf


SHAPES = {
    "lognormal": lambda chance, shape: chance.lognormal(sigma=0.3, size=shape),
    "exponential": lambda chance, shape: chance.exponential(size=shape),
    "uniform": lambda chance, shape: chance.uniform(1, 2, size=shape),
    "half miss": lambda chance, shape: 1 / np.maximum(chance.uniform(-1, 1.2, size=shape), 0),
}
MEDIANS = {"lognormal": 1.0, "exponential": math.log(2), "uniform": 1.5, "half miss": 10.0}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("shape", "num_seeds"),
    [("lognormal", 3), ("lognormal", 5), *((s, n) for s in SHAPES for n in (6, 10, 25))],
)
def test_intervals_cover_the_median_in_93_to_97_of_a_hundred_samples(shape, num_seeds):
    samples = SHAPES[shape](np.random.default_rng(3), (1500, num_seeds))
    bounds = np.array([median_interval(sample) for sample in samples])
    covered = (bounds[:, 0] <= MEDIANS[shape]) & (MEDIANS[shape] <= bounds[:, 1])
    assert 0.93 < covered.mean() < 0.97


@pytest.mark.parametrize(("num_seeds", "paired"), [(3, True), (10, True), (3, False), (10, False)])
def test_of_equal_algorithms_one_in_20_comparisons_is_wrong(num_seeds, paired):
    samples = np.random.default_rng(4).lognormal(sigma=0.3, size=(1500, 2, num_seeds))
    seeds = np.random.default_rng(5).lognormal(sigma=paired, size=(1500, 1, num_seeds))
    apart = [
        not is_tie(one.tolist(), other.tolist(), paired=paired, model_error=0.0)
        for one, other in samples * seeds
    ]
    assert 0.02 < np.mean(apart) < 0.06


def test_of_19_equal_algorithms_none_is_first_alone():
    samples = np.random.default_rng(6).lognormal(sigma=0.3, size=(100, 19, 10))
    alone = 0
    for algorithms in samples:
        first, *others = sorted(algorithms, key=np.median)
        alone += not any(is_tie(o, first, paired=True, model_error=0.0) for o in others)
    assert alone <= 0.05 * len(samples)


def equal(num_seeds, chance, spread):
    """A page of 19 algorithms on 6 networks whose times differ by chance alone, by seed alike."""
    seeds = chance.normal(size=(6, 1, num_seeds))
    times = np.exp(0.3 * seeds + spread * chance.normal(size=(6, 19, num_seeds)))
    return [
        [
            {
                **{
                    "label": f"{k}",
                    "algo": "a",
                    "target": "accuracy 0.9",
                    "runs": num_seeds,
                    "seeds": tuple(range(num_seeds)),
                },
                **{"times_s": tuple(own), "time_to_accuracy_s": float(np.median(own))},
                **{"mb_a_step": 1.0, "is_baseline": False, "shared_gpu": False},
            }
            for k, own in enumerate(network)
        ]
        for network in times
    ]


@pytest.mark.parametrize("num_seeds", [3, 10])
@pytest.mark.parametrize("alike", [True, False])
def test_one_page_in_20_tells_some_of_equal_algorithms_apart(num_seeds, alike):
    """Where deviations differ tenfold, more pages do, but none has one algorithm first alone."""
    chance, num_wrong, num_alone, num_pages = np.random.default_rng(7), 0, 0, 40
    for _ in range(num_pages):
        spread = 0.1 if alike else chance.uniform(0.03, 0.3, size=(1, 19, 1))
        page = compared_on_page(equal(num_seeds, chance, spread))
        num_wrong += any(not row["ties_with_first"] and row["place"] > 1 for n in page for row in n)
        num_alone += any(not any(row["ties_with_first"] for row in n) for n in page)
    assert num_alone == 0
    assert num_wrong <= (0.05 if alike else 0.2) * num_pages


def test_what_could_never_have_been_the_first_is_in_no_pair_of_the_page():
    [[one, other, *_], *_] = equal(3, np.random.default_rng(7), 0.1)
    one |= {"times_s": (1.0,) * 3, "time_to_accuracy_s": 1.0}
    logs = np.array([0.2256, 0.3256, 0.4256])  # of which the t test says 0.03
    assert stats.ttest_1samp(logs, 0).pvalue == pytest.approx(0.03, abs=1e-3)
    other |= {"times_s": tuple(np.exp(logs)), "time_to_accuracy_s": math.exp(logs[1])}
    never = {"times_s": (math.inf,) * 3, "time_to_accuracy_s": math.inf}
    for others, is_tied in (
        (never, True),
        (never | {"target": math.nan}, False),
        (never | {"time_to_accuracy_s": math.nan}, False),
    ):
        page = compared_on_page([[one, other], [one | others, other | others]])
        assert page[0][1]["ties_with_first"] == is_tied


def test_the_deviation_of_all_tells_apart_what_that_of_two_does_not():
    times = [[1.0, 1.1, 0.9], [3.0, 2.0, 3.5], *([[4.0 + k, 4.4 + k, 3.8 + k] for k in range(9)])]
    own = stats.ttest_rel(np.log(times[0]), np.log(times[1])).pvalue
    assert p_values(times, paired=True)[0] < 1e-3 < 1e-2 < own
    one_way = stats.f_oneway(np.log([1.0, 1.2, 0.9]), np.log([2.0, 2.2, 1.9])).pvalue
    assert p_values([[1.0, 1.2, 0.9], [2.0, 2.2, 1.9]], paired=False) == [pytest.approx(one_way)]
    alike = p_values([[1.0] * 3, [2.0] * 3, [1.0] * 3], paired=True)
    assert alike == [pytest.approx(0.0, abs=1e-12), 1.0]


def test_a_miss_counts_as_the_longest_time_and_a_first_with_one_is_told_from_none():
    times = [[1.0, 1.1, 0.9], [8.0, 9.0, math.inf], [math.inf] * 3]
    missed, never = p_values(times, paired=True)
    assert missed == p_values([times[0], [8.0, 9.0, 9.0]], paired=True)[0] and never == 1.0
    assert p_values([times[1], times[0]], paired=True) == [1.0]


def test_holm_is_bonferroni_for_the_least_and_stops_at_the_first_that_is_not_told():
    assert holm([0.04, 0.001, 0.012], 5) == [False, True, True]
    assert holm([0.04, 0.011, 0.012], 5) == [False] * 3
    assert holm([0.04], 1) == [True]


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


def test_the_ratio_of_other_seeds_is_welchs():
    few, many = np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.5, 4.0, 4.5, 5.0])
    theirs = stats.ttest_ind(np.log(few), np.log(many), equal_var=False).confidence_interval()
    expected = (math.exp(theirs.low), math.exp(theirs.high))
    assert ratio_interval(few, many, paired=False) == pytest.approx(expected)
    assert ratio_interval([2.0] * 3, [1.0] * 3, paired=False) == pytest.approx((2.0, 2.0))
    assert math.isnan(ratio_interval([1.0, 2.0, math.inf], many, paired=False)[0])


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


def test_where_misses_leave_no_interval_the_ranges_decide():
    some_miss = [8.0, math.inf, 9.0]
    for paired in (True, False):
        assert is_tie(some_miss, [1.0, 2.0, 8.5], paired=paired, model_error=0.0)
        assert not is_tie(some_miss, [1.0, 2.0, 7.0], paired=paired, model_error=0.0)
        assert not is_tie([1.0, 2.0, 7.0], some_miss, paired=paired, model_error=0.0)
        assert is_tie(some_miss, [1.0, 2.0, 7.0], paired=paired, model_error=0.2)


def test_pairs_tell_apart_what_varies_alike():
    times = [1.0, 2.0, 3.0]
    slower = [1.1 * time for time in times]
    assert not is_tie(times, slower, paired=True, model_error=0.0)
    assert is_tie(times, slower, paired=False, model_error=0.0)


def test_few_seeds_have_no_interval_so_the_medians_decide():
    assert not is_tie([1.0, 3.0], [2.0, 2.5], paired=False, model_error=0.0)
    assert is_tie([1.0, 3.0], [2.0, 2.5], paired=False, model_error=0.13)
    assert not is_tie([1.0, 3.0], [2.0, 2.5, 2.6], paired=False, model_error=0.0)


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
    for other, best in ((104.0, [1.0, 3.0]), (106.0, [1.0])):
        near = settings.assign(steps_to_accuracy=[100.0, other])
        assert list(best_by_steps(near).lr_scale) == best
    assert list(best_by_steps(settings.assign(reached=[0.8, 1.0])).lr_scale) == [3.0]
    missed = settings.assign(steps_to_accuracy=float("inf"))
    assert list(best_by_steps(missed).lr_scale) == [3.0]
    assert list(best_by_steps(missed.assign(metric="loss")).lr_scale) == [1.0]


def test_the_errors_of_predictions_are_those_of_the_committed_table():
    """Where the table was made anew, copy its column into predicted_errors.csv."""
    lines = (ROOT / "results" / "validation" / "time.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    committed = {
        row[0].removeprefix("net="): pytest.approx(float(row[3].removesuffix("%")) / 100)
        for row in rows
        if row and row[0].startswith("net=")
    }
    shipped = list(csv.DictReader(_table().splitlines()))
    assert {row["network"]: float(row["mean_absolute_error"]) for row in shipped} == committed
    for row in shipped:
        rate = float(row["rate_mbit"]) if row["rate_mbit"] else None
        assert rate == read_condition(row["network"]).rate_mbit


def _table():
    return (resources.files(statistics.__package__) / "predicted_errors.csv").read_text()


def test_the_error_is_the_largest_of_the_networks_in_the_class():
    rows = list(csv.DictReader(_table().splitlines()))
    slow, fast, unlimited = (
        max(float(row["mean_absolute_error"]) for row in rows if row["rate_mbit"] == rate)
        for rate in ("100", "1000", "")
    )
    assert [prediction_error(rate) for rate in RATE_CLASSES_MBIT] == [slow, fast, unlimited]
    assert [prediction_error(rate) for rate in (10, 200.1, 1000.1)] == [slow, fast, unlimited]
    assert prediction_error(None) == unlimited


def test_pairs_are_exchanged_in_all_ways():
    """By the definition, with six pairs, of which one differs by nothing."""
    values, others = [3.0, 5.0, 2.0, 9.0, 4.0, 7.0], [2.0, 5.0, 3.0, 4.0, 2.0, 5.0]
    logs = [math.log(one / other) for one, other in zip(values, others, strict=True)]
    means = [
        abs(sum(sign * log for sign, log in zip(signs, logs, strict=True)))
        for signs in itertools.product((1, -1), repeat=6)
    ]
    as_far = sum(mean >= means[0] - 1e-12 for mean in means) / len(means)
    assert flip_p_value(values, others) == pytest.approx(as_far)
    assert flip_p_value(others, values) == pytest.approx(as_far)
    assert flip_p_value(values, values) == 1.0
    doubled = [2 * value for value in values]
    assert flip_p_value(doubled, values) == pytest.approx(2 / 64)


@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["apart", "by_seed"])
def test_pairs_of_one_distribution_are_told_apart_once_in_20_times_at_most(shared):
    """Steps of ten seeds, evaluated every other step, whatever of them the seed decides."""
    chance = np.random.default_rng(1)
    steps = []
    for _ in range(500):
        seeds = shared * chance.standard_normal((1, 10))
        logs = 4 + 0.15 * (seeds + math.sqrt(1 - shared**2) * chance.standard_normal((2, 10)))
        steps.append(2 * np.ceil(np.exp(logs) / 2))
    found = sum(flip_p_value(*pair) <= 0.05 for pair in steps) / len(steps)
    assert found <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 500)


def test_ten_pairs_tell_a_shift_of_their_own_deviation_and_of_twice_that_on_a_page():
    """The t test of ten differences finds one of 1.0 in 80 % of cases. At a level below 4 / 1024
    all ten signs have to be equal, which have a chance of Phi(shift) ** 10.
    """
    assert detectable_shift(10, 0.05) == pytest.approx(1.0, abs=0.06)
    of_all_signs = NormalDist().inv_cdf(0.8**0.1)
    assert detectable_shift(10, 0.05 / 19) == pytest.approx(of_all_signs, abs=0.06)
    assert detectable_shift(5, 0.05) == math.inf


def test_what_many_pairs_can_tell_takes_little_memory():
    tracemalloc.start()
    try:
        assert 0.6 < detectable_shift(14, 0.05) < detectable_shift(10, 0.05)
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
