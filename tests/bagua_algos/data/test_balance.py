"""Every example once an epoch, whatever the numbers; and like costs at each step."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagua_algos.data.balance import Balance

COSTS = st.lists(st.integers(1, 50), min_size=1, max_size=60).map(
    lambda costs: np.array(costs, np.float64)
)
ORDERS = st.fixed_dictionaries(
    {"num_workers": st.integers(1, 7), "seed": st.integers(0, 3)},
    optional={"random_level": st.sampled_from([0.0, 0.1, 1.0])},
)
EPOCH = st.integers(0, 4)


def counts_per_example(n: int, indices: np.ndarray) -> list[int]:
    counts = Counter(indices.ravel().tolist())
    assert set(counts) <= set(range(n))
    return [counts[i] for i in range(n)]


@settings(deadline=None)
@given(costs=COSTS, order=ORDERS, batch_size=st.integers(1, 5), epoch=EPOCH)
def test_every_example_comes_once_and_as_few_as_possible_twice(costs, order, batch_size, epoch):
    n, num_workers = len(costs), order["num_workers"]
    share = math.ceil(n / num_workers)
    indices_ws = Balance(**order).epoch(
        costs, epoch, batch_size=batch_size, num_taken=share * num_workers
    )
    assert indices_ws.shape == (num_workers, share)
    counts = counts_per_example(n, indices_ws)
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1
    assert sum(counts) == share * num_workers  # as DistributedSampler pads


@settings(deadline=None)
@given(costs=COSTS, order=ORDERS, batch_size=st.integers(1, 5), epoch=EPOCH)
def test_what_is_left_out_is_less_than_one_for_each_worker(costs, order, batch_size, epoch):
    n, num_workers = len(costs), order["num_workers"]
    num_taken = n // num_workers * num_workers
    if num_taken == 0:
        return
    indices = Balance(**order).epoch(costs, epoch, batch_size=batch_size, num_taken=num_taken)
    counts = counts_per_example(n, indices)
    assert max(counts) == 1 and sum(counts) == num_taken


@settings(deadline=None)
@given(costs=COSTS, order=ORDERS, budget=st.integers(50, 200), epoch=EPOCH)
def test_no_batch_is_over_the_budget_and_all_workers_have_equally_many(costs, order, budget, epoch):
    batches = Balance(**order).batches(costs, epoch, budget=budget)
    for batch_wk in batches:
        assert batch_wk.shape[0] == order["num_workers"]
        assert (batch_wk.shape[1] * costs[batch_wk].max(1) <= budget).all()
    counts = counts_per_example(len(costs), np.concatenate([b.ravel() for b in batches]))
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1
    assert sum(counts) < len(costs) + order["num_workers"]


def test_a_batch_is_as_large_as_the_budget_lets_it_be():
    """Among neighbours by cost, one row of examples more would be over the budget."""
    costs = np.random.default_rng(0).integers(5, 40, 400).astype(float)
    balance = Balance(num_workers=4, shuffle=False)
    batches = balance.batches(costs, 0, budget=100)
    for batch, following in itertools.pairwise(batches):
        next_row = np.sort(costs[following].ravel())[:4]
        assert (batch.shape[1] + 1) * next_row.max() > 100


def lengths() -> np.ndarray:
    """Of 2,000 recordings: most short, a few very long."""
    return np.random.default_rng(3).lognormal(3, 0.4, 2_000).round().clip(5, 90)


def waste(indices_wb: np.ndarray, costs: np.ndarray) -> float:
    """What the slowest worker's padded batch costs, over the mean of an example."""
    return float(np.mean([costs[batch].max() for batch in indices_wb])) / costs.mean()


def steps_of(balance: Balance, costs: np.ndarray, batch_size: int) -> list[np.ndarray]:
    indices_ws = balance.epoch(costs, 0, batch_size=batch_size, num_taken=2_000)
    return np.split(indices_ws, range(8, indices_ws.shape[1], 8), axis=1)


def test_the_dearest_batch_of_a_step_costs_little_more_than_the_mean():
    costs = lengths()

    def mean_waste(**options):
        balance = Balance(num_workers=4, **options)
        batch_size = 1 if options.get("random_level") == 1 else 8
        return waste(np.array(steps_of(balance, costs, batch_size)[:-1]), costs)

    balanced, shuffled = mean_waste(), mean_waste(random_level=1.0)
    assert balanced < 1.05
    assert shuffled > 1.8
    assert balanced < mean_waste(random_level=0.1) < mean_waste(random_level=0.5) < shuffled


def test_sums_are_alike_too():
    """Dealt to and fro, no worker always gets the dearer of two neighbours."""
    costs = lengths()
    sums_w = np.array([costs[step].sum(1) for step in steps_of(Balance(num_workers=4), costs, 8)])
    assert ((sums_w.max(1) - sums_w.min(1)) / sums_w.mean(1)).mean() < 0.02
    in_order_w = np.sort(costs).reshape(-1, 4).sum(0)
    assert np.ptp(sums_w.sum(0)) < np.ptp(in_order_w) / 2


def test_orders_follow_from_seed_and_epoch_alone():
    costs = lengths()

    def order(seed: int, epoch: int) -> bytes:
        balance = Balance(num_workers=4, seed=seed)
        return balance.epoch(costs, epoch, batch_size=8, num_taken=2_000).tobytes()

    orders = [order(seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert orders == [order(seed, epoch) for seed in range(3) for epoch in range(3)]


def test_examples_of_equal_cost_and_of_level_one_are_shuffled_as_by_dice():
    """Where an example comes is independent of its cost, or of its index."""
    costs = lengths()
    places = np.arange(2_000)
    for given_costs, options in ((costs, {"random_level": 1.0}), (np.ones(2_000), {})):
        balance = Balance(num_workers=1, **options)
        order = balance.epoch(given_costs, 0, batch_size=1, num_taken=2_000)[0]
        assert abs(np.corrcoef(places, costs[order])[0, 1]) < 0.06
        assert abs(np.corrcoef(places, order)[0, 1]) < 0.06
    halves = Balance(num_workers=1, random_level=1.0)
    one, other = costs[halves.epoch(costs, 0, batch_size=1_000, num_taken=2_000)].reshape(2, -1)
    assert abs(one.mean() - other.mean()) < 0.1 * costs.std(), "nor is its batch of its cost"


def test_a_small_last_batch_is_not_of_the_dearest():
    """2,000 = 62 * 32 + 16: were it the tail of the order, long examples would always be last."""
    costs = lengths()
    last = [
        costs[
            Balance(num_workers=4, seed=seed).epoch(costs, 0, batch_size=8, num_taken=2_000)[:, -4:]
        ].mean()
        for seed in range(30)
    ]
    assert np.percentile(costs, 20) < np.median(last) < np.percentile(costs, 80)


def test_without_shuffle_costs_rise():
    costs = lengths()
    balance = Balance(num_workers=4, shuffle=False)
    indices = balance.epoch(costs, 0, batch_size=8, num_taken=2_000)
    maxima = [costs[step].max() for step in np.split(indices, range(8, 500, 8), axis=1)]
    assert maxima == sorted(maxima)
    np.testing.assert_array_equal(indices, balance.epoch(costs, 9, batch_size=8, num_taken=2_000))


def test_equal_global_batches_on_any_number_of_workers():
    costs = lengths()
    one = Balance(num_workers=1, seed=3).epoch(costs, 0, batch_size=32, num_taken=1_984)
    four = Balance(num_workers=4, seed=3).epoch(costs, 0, batch_size=8, num_taken=1_984)
    for step in (0, 7, 61):
        assert set(one[:, 32 * step : 32 * step + 32].flat) == set(
            four[:, 8 * step : 8 * step + 8].flat
        )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1, got 0"),
        ({"num_workers": "2"}, "num_workers must be a whole number of at least 1, got 2"),
        ({"num_workers": 1, "seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"num_workers": 1, "seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"num_workers": 1, "random_level": "0.5"}, "random_level must be a number, got '0.5'"),
        ({"num_workers": 1, "random_level": 1.5}, r"random_level must be in \[0, 1\], got 1.5"),
        ({"num_workers": 1, "random_level": 0.5, "shuffle": False}, "needs shuffle=True"),
    ],
)
def test_impossible_numbers(options, what):
    with pytest.raises(ValueError, match=what):
        Balance(**options)
