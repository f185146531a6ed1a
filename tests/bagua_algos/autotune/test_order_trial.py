"""When the order of sums is measured, in which turns, and what comes of it."""

import math
from functools import partial
from typing import Any

import pytest

from bagua_algos.autotune import order
from bagua_algos.autotune.order import choose_order, slowest, sum_in, try_orders
from bagua_algos.communication.streams import SEVERAL
from tests.bagua_algos.autotune.stand_ins import SLOWEST, Engine, Workers

GIVEN, FIXED, BY_SEVERAL = (False, 1), (True, 1), (True, SEVERAL)
EQUAL = {GIVEN: 1.0, FIXED: 1.0, BY_SEVERAL: 1.0}


@pytest.fixture(autouse=True)
def averaged(monkeypatch):
    """What was averaged: gradients, over whom, and whether by nodes."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(order, "all_reduce_mean_", lambda *call: calls.append(call))
    return calls


def engine_of(sizes=(10, 100), *, needs_nodes=False, all_reduces=True, **workers) -> Any:
    return Engine(sizes, Workers(**workers), needs_nodes=needs_nodes, all_reduces=all_reduces)


def timed(engine: Any, seconds: dict[tuple[bool, int], float]) -> list[tuple[bool, int]]:
    """What is averaged by which way, as it comes."""
    ways = []

    def seconds_of(workers: Any, num_buckets: int) -> float:
        ways.append((workers.fixed_order, workers.streams))
        return seconds[ways[-1]]

    engine.dispatcher.seconds = seconds_of
    return ways


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"halving_doubling_bytes": 399},  # the larger bucket has 400
        {"all_reduces": False, "needs_nodes": True},
        {"world_size": 4},
    ],
)
@pytest.mark.parametrize(("fixed_s", "is_fixed"), [(0.5, True), (2.0, False)])
def test_where_there_is_a_choice_the_faster_order_is_taken(monkeypatch, there, fixed_s, is_fixed):
    engine = engine_of(**there)
    timed(engine, EQUAL | {FIXED: fixed_s})
    monkeypatch.setattr(order, "try_orders", partial(try_orders, clock=engine.clock))
    chosen = choose_order(engine, None)
    assert chosen.is_fixed == is_fixed and chosen.trial is not None
    assert engine.dispatcher.uses[-1] == {
        "lanes": 2,
        "streams": 1,
        "halving_doubling_bytes": there.get("halving_doubling_bytes", 0),
        "fixed_order": is_fixed,
        "pieces": False,
    }


@pytest.mark.parametrize(
    "there",
    [
        {"world_size": 2},
        {"fixed_order": True},
        {"shares_memory": True},
        {"halving_doubling_bytes": 400},
        {"all_reduces": False},
    ],
)
def test_where_there_is_none_nothing_is_measured_and_the_order_is_fixed(there):
    engine = engine_of(**there)
    ways = timed(engine, {})
    chosen = choose_order(engine, None)
    assert chosen.is_fixed and chosen.trial is None and not ways
    others = there.get("world_size", 3) > 2
    assert [use["fixed_order"] for use in engine.dispatcher.uses] == [True] * others


def test_streams_stay_as_they_are_unless_others_are_named():
    engine = engine_of(streams=5, pieces=True)
    sum_in(engine, is_fixed=True)
    sum_in(engine, is_fixed=False, streams=3)
    assert [(u["streams"], u["fixed_order"]) for u in engine.dispatcher.uses] == [
        (5, True),
        (3, False),
    ]
    assert engine.dispatcher.uses[0]["pieces"]


def test_ways_are_timed_to_and_fro_after_several_streams_are_connected(averaged):
    engine = engine_of(needs_nodes=True)
    ways = timed(engine, {GIVEN: 1.0, FIXED: 1.25, BY_SEVERAL: 1.5})
    trial = try_orders(engine, budget_s=8 * SLOWEST, clock=engine.clock)
    forth = [GIVEN, FIXED, BY_SEVERAL]
    assert ways == [BY_SEVERAL, *forth[::-1], *forth, *forth[::-1]]
    found = trial.given_s, trial.fixed_s, trial.several_s, trial.num_turns
    assert found == (SLOWEST, 1.25 * SLOWEST, 1.5 * SLOWEST, 3)
    buckets, workers = engine.context.buckets, engine.context.communicator
    assert averaged == len(ways) * [(bucket.gradients, workers, True) for bucket in buckets]


def test_where_there_are_several_already_two_ways_are_timed():
    engine = engine_of(streams=SEVERAL)
    ways = timed(engine, {(False, SEVERAL): 1.0, BY_SEVERAL: 2.0})
    trial = try_orders(engine, clock=engine.clock)
    assert trial.several_s is None and trial.num_turns == 2
    assert ways == [BY_SEVERAL, (False, SEVERAL), (False, SEVERAL), BY_SEVERAL]


def test_smaller_buckets_are_timed_as_the_search_would_make_them(averaged):
    engine = engine_of((3, 5, 40, 2, 6), streams=SEVERAL)
    engine.relayout([engine.parameters[:3], engine.parameters[3:]])
    engine.dispatcher.seconds = lambda workers, num_buckets: float(num_buckets)
    trial = try_orders(engine, 8 * 8 * 4, budget_s=0.0, clock=engine.clock)
    assert (trial.fixed_s, trial.smaller_s) == (2 * SLOWEST, 3 * SLOWEST)
    first, second = (bucket.gradients for bucket in engine.context.buckets)
    smaller = [gradients for gradients, *_ in averaged[:3]]
    assert [x.numel() for x in smaller] == [8, 40, 8]
    places = [first[:, :8].data_ptr(), first[:, 8:].data_ptr(), second.data_ptr()]
    assert [x.data_ptr() for x in smaller] == places


@pytest.mark.parametrize("bucket_bytes", [4 * 64, 10**9, math.inf])
def test_an_eighth_is_of_all_that_there_is_where_buckets_may_hold_more(bucket_bytes):
    engine = engine_of((8,) * 8, streams=SEVERAL)
    engine.relayout([engine.parameters])
    nums = []
    engine.dispatcher.seconds = lambda workers, num: float(nums.append(num) or 1.0)
    assert try_orders(engine, bucket_bytes, budget_s=0.0, clock=engine.clock).smaller_s is not None
    assert set(nums) == {1, 8}


@pytest.mark.parametrize(("sizes", "bucket_bytes"), [((8, 8), 8 * 4 * 8), ((400,), 800)])
def test_buckets_that_cannot_be_smaller_are_timed_once(sizes, bucket_bytes):
    engine = engine_of(sizes)
    ways = timed(engine, EQUAL)
    trial = try_orders(engine, bucket_bytes, budget_s=0.0, clock=engine.clock)
    assert trial.smaller_s is None and len(ways) == 1 + 2 * len(EQUAL)


@pytest.mark.parametrize(("smaller_s", "is_fixed"), [(1.0, True), (1.0625, False)])
def test_a_fixed_order_may_be_as_fast_in_smaller_buckets_alone(monkeypatch, smaller_s, is_fixed):
    engine = engine_of((8, 8), streams=SEVERAL)
    engine.relayout([engine.parameters])
    seconds = {(False, 1): 1.0, (True, 1): 1.25, (True, 2): smaller_s}
    engine.dispatcher.seconds = lambda workers, num: seconds[workers.fixed_order, num]
    monkeypatch.setattr(order, "try_orders", partial(try_orders, clock=engine.clock))
    chosen = choose_order(engine, 4 * 8 * 8)
    assert chosen.is_fixed == is_fixed and chosen.trial is not None
    assert chosen.trial.smaller_s == SLOWEST * smaller_s


@pytest.mark.parametrize(
    ("seconds", "options", "num_turns"),
    [
        (EQUAL | {FIXED: 1.5}, {"budget_s": 1e9}, 2),  # clear
        (EQUAL, {"budget_s": 1e9}, 9),
        (EQUAL, {"budget_s": 0.0}, 2),
        (EQUAL, {"budget_s": 9 * SLOWEST}, 4),  # at the end of the third turn it is not over
        (EQUAL, {"budget_s": 9 * SLOWEST - 0.1}, 3),
        (dict.fromkeys(EQUAL, 0.25), {}, 3),  # of 1.5 s on the slowest worker; 3 s by default
    ],
)
def test_turns_end_when_the_result_is_clear_or_their_time_is_over(seconds, options, num_turns):
    engine = engine_of()
    timed(engine, seconds)
    assert try_orders(engine, clock=engine.clock, **options).num_turns == num_turns


def test_a_wait_for_the_others_is_no_part_of_what_is_timed():
    engine = engine_of()
    timed(engine, EQUAL | {FIXED: 2.0})
    engine.dispatcher.wait_s = 16.0
    trial = try_orders(engine, budget_s=1e9, clock=engine.clock)
    assert (trial.given_s, trial.fixed_s, trial.num_turns) == (SLOWEST, 2 * SLOWEST, 2)
    done = engine.dispatcher.done
    assert all(done[at - 1] == "together" for at, one in enumerate(done) if one == "buckets")


def test_the_slowest_worker_counts_each_number_by_itself():
    engine = engine_of((10,))  # on one bucket alone
    numbers = slowest(engine, [1.0, -3.0, 1 + 2**-50])
    assert numbers == [SLOWEST, -1.5, SLOWEST * (1 + 2**-50)], "of 64 bits"


@pytest.mark.parametrize(
    ("given_s", "fixed_s", "several_s", "is_fixed", "is_clear"),
    [
        (order.WORTH_IT, 1.0, None, True, False),
        (0.75, 2.0, 0.5, True, True),
        (0.75, 1.0, 0.51, False, False),
        (1.0, 1.5, None, False, True),
    ],
)
def test_at_the_borders_the_order_is_fixed_and_clear(
    given_s, fixed_s, several_s, is_fixed, is_clear
):
    trial = order.OrderTrial(given_s=given_s, fixed_s=fixed_s, several_s=several_s, num_turns=2)
    assert (trial.is_fixed, trial.is_clear) == (is_fixed, is_clear)
