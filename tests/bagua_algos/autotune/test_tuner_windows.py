"""Windows of steps, and what is changed after each, by a clock that a test sets."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bagua_algos.autotune.order import Order, OrderTrial
from bagua_algos.autotune.scope import Scope
from bagua_algos.autotune.tuner import Tuner
from bagua_algos.communication.patterns import EVERY_SIZE
from tests.bagua_algos.autotune.stand_ins import SLOWEST, Engine, Workers

ALL = Scope(tunes_lanes=True, tunes_transport=True, tunes_buckets=True, left_out=())
NOTHING = Scope(tunes_lanes=False, tunes_transport=False, tunes_buckets=False, left_out=("why",))
FIXED = Order(is_fixed=True)
SIZES = (4, 4, 8, 16)
"""128 bytes; a quarter of a bucket holds the last two by themselves."""


def tuner_of(
    engine: Any, own: Scope = ALL, order: Order = FIXED, bucket_bytes: int = 1_000
) -> Tuner:
    return Tuner(engine, own, order, bucket_bytes, clock=engine.clock)


def train(
    tuner: Tuner, engine: Any, num_steps: int, seconds: Callable[[int], float] = lambda step: 1.0
) -> None:
    """Step n takes `seconds(n)` here, n from 1 on."""
    for _ in range(num_steps):
        tuner.forward_begins()
        engine.context.step += 1
        engine.now_s += seconds(engine.context.step)
        tuner.step_ended()


def rows(tuner: Tuner) -> list[dict[str, Any]]:
    return tuner.tuning.table()["windows"]


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        ({}, [13, 23, 33]),
        ({"num_early_steps": 7}, [17, 27, 37]),
        ({"steps_per_round": 3}, [11, 19, 27]),
        ({"steps_per_round": 5}, [10, 17, 24]),
        ({"steps_per_round": 20}, [25, 47, 69]),
    ],
)
def test_a_window_has_whole_rounds_of_about_eight_steps_after_two(algorithm, steps):
    engine = Engine(SIZES, Workers(), **algorithm)
    tuner = tuner_of(engine)
    train(tuner, engine, steps[-1])
    assert [row["step"] for row in rows(tuner)] == steps


def test_the_first_steps_of_a_window_and_one_that_is_held_up_do_not_count():
    engine = Engine(SIZES, Workers())
    tuner = tuner_of(engine)
    train(tuner, engine, 13, lambda step: {4: 50.0, 5: 70.0, 9: 90.0}.get(step, 0.5))
    assert [row["step_s"] for row in rows(tuner)] == [0.5 * SLOWEST]


def test_a_round_counts_with_all_of_its_steps():
    engine = Engine(SIZES, Workers(), steps_per_round=2)
    tuner = tuner_of(engine)
    train(tuner, engine, 13, lambda step: 9.0 if step in (8, 9) else 1.0 + step % 2)
    assert [row["step_s"] for row in rows(tuner)] == [1.5 * SLOWEST]


def test_what_is_done_between_two_parts_of_a_step_takes_no_part():
    engine = Engine(SIZES, Workers())
    tuner = tuner_of(engine)
    train(tuner, engine, 3)
    for _ in range(10):
        tuner.forward_begins()
        engine.now_s += 1.0
        tuner.paused()
        engine.now_s += 1_000.0
        tuner.paused()
        tuner.forward_begins()
        engine.now_s += 0.5
        tuner.forward_begins()
        engine.now_s += 0.25
        engine.context.step += 1
        tuner.step_ended()
        tuner.paused()
        engine.now_s += 1_000.0
    assert [row["step_s"] for row in rows(tuner)] == [1.75 * SLOWEST]


def test_a_pause_at_the_end_of_a_step_is_its_end():
    engine = Engine(SIZES, Workers())
    tuner = tuner_of(engine)
    train(tuner, engine, 3)
    for _ in range(10):
        tuner.forward_begins()
        engine.now_s += 1.0
        tuner.paused()
        engine.now_s += 1_000.0
        engine.context.step += 1
        tuner.step_ended()
        tuner.paused()
    assert [row["step_s"] for row in rows(tuner)] == [SLOWEST]


def tried(tuner: Tuner, engine: Any, seconds: Callable[[int], float] = lambda step: 1.0) -> Any:
    """What differed from the first window, by window."""
    train(tuner, engine, 203, seconds)
    assert tuner.tuning.is_done
    left_out = ("step", "step_s", "num_buckets")
    first, *others = ({k: v for k, v in r.items() if k not in left_out} for r in rows(tuner))
    return [{k: v for k, v in one.items() if v != first[k]} for one in others]


def in_one_bucket(workers: Workers) -> Engine:
    engine = Engine(SIZES, workers)
    engine.backward.order = [engine.parameters[n] for n in (3, 0, 2, 1)]
    engine.relayout([engine.parameters])
    return engine


class HeldElsewhere(Workers):
    """Another worker's script holds a weight's memory."""

    def all_gather(self, x_w: torch.Tensor) -> torch.Tensor:
        return super().all_gather(x_w if x_w.any() else x_w + 1)


@pytest.mark.parametrize("is_here", [True, False])
def test_buckets_stay_where_a_script_on_any_worker_holds_weights_memory(is_here):
    engine = in_one_bucket(Workers() if is_here else HeldElsewhere())
    engine.held = "'0.weight'" if is_here else None
    layout, tuner = engine.layout, tuner_of(engine)
    said = pytest.warns(UserWarning, match=r"'0.weight' shares its memory with a tensor that the")
    with said if is_here else nullcontext() as warned:
        others = tried(tuner, engine)
    assert len(warned or [0]) == 1
    assert others[: len(STREAMS) + 1] == [*STREAMS, BY_HALVES] and engine.layout == layout
    assert not any("bucket_bytes" in one or "by_arrival" in one for one in others)
    assert tuner.tuning.left_out == ("a script holds weights' memory: buckets stay as they are",)
    assert asdict(tuner.tuning.settings) | {"bucket_bytes": 128} == asdict(tuner.tuning.settings)


def test_buckets_stay_where_weights_are_held_once_they_have_moved():
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)

    def seconds(step: int) -> float:
        if len(engine.context.buckets) > 1:
            engine.held = "'0.weight'"
        return 1.0 / len(engine.context.buckets)

    with pytest.warns(UserWarning, match="buckets stay as they are"):
        tried(tuner, engine, seconds)
    found = [[one.numel for one in bucket] for bucket in tuner._groups(tuner.tuning.settings)]
    assert len(engine.context.buckets) == len(found) > 1


BUCKETS = [{"bucket_bytes": 32}, {"bucket_bytes": 64}]
STREAMS, ONE_LANE = [{"streams": number} for number in (4, 8, 16)], {"lanes": 1}
BY_HALVES, BY_RING = {"halving_doubling_bytes": EVERY_SIZE}, {"halving_doubling_bytes": 0}


@pytest.mark.parametrize(
    ("workers", "own", "expected"),
    [
        (Workers(), ALL, [*STREAMS, BY_HALVES, *BUCKETS]),
        (Workers(halving_doubling_bytes=EVERY_SIZE), ALL, [*STREAMS, BY_RING, *BUCKETS]),
        (Workers(halving_doubling_bytes=9), ALL, [*STREAMS, BY_RING, BY_HALVES, *BUCKETS]),
        (Workers(shares_memory=True), ALL, [*STREAMS, *BUCKETS]),
        (Workers(streams=4), ALL, [*STREAMS[1:], BY_HALVES, {"pieces": True}, *BUCKETS]),
        (Workers(streams=16), ALL, [BY_HALVES, {"pieces": True}, *BUCKETS]),
        (Workers(streams=16, pieces=True), ALL, [BY_HALVES, {"pieces": False}, *BUCKETS]),
        (Workers(), replace(ALL, tunes_buckets=False), [*STREAMS, BY_HALVES]),
        (Workers(streams=4), replace(ALL, tunes_transport=False), BUCKETS),
        (Workers(device=torch.device("cuda")), ALL, BUCKETS),
        (Workers(device=torch.device("cpu"), shares_memory=True), ALL, [*STREAMS, *BUCKETS]),
    ],
)
def test_what_is_tried_where_nothing_is_faster(workers, own, expected):
    """One bucket is on one lane, so that a single lane is nothing new."""
    given = dict(vars(workers))
    engine = in_one_bucket(workers)
    assert tried(tuner_of(engine, own), engine) == expected
    assert {name: vars(workers)[name] for name in given} == given, "at the end it is as it was"
    assert engine.layout == [[0, 1, 2, 3]] and engine.dispatcher.num_used == 2


def test_one_lane_is_tried_where_there_are_several_buckets():
    engine = Engine(SIZES, Workers(shares_memory=True, streams=16))
    tuner = tuner_of(engine, replace(ALL, tunes_buckets=False))
    assert tried(tuner, engine) == [ONE_LANE, {"pieces": True}]


def test_buckets_are_filled_as_worker_0s_gradients_come():
    """What is faster and faster stays: small buckets, then another order of them."""
    engine = in_one_bucket(Workers(streams=16, shares_memory=True, first_says=(2, 0, 3, 1)))
    tuner = tuner_of(engine, replace(ALL, tunes_transport=False))
    layouts: list[list[list[int]]] = []

    def seconds(step: int) -> float:
        if not layouts or layouts[-1] != engine.layout:
            layouts.append(engine.layout)
        is_tried = tuner.tuning.settings.by_arrival
        return 2.0 / len(engine.context.buckets) / (1 + is_tried)

    train(tuner, engine, 203, seconds)
    assert layouts[:2] == [[[0, 1, 2, 3]], [[0, 1], [2], [3]]]
    assert tuner.tuning.settings.by_arrival
    assert engine.layout == [[2], [0], [3], [1]]


def test_the_best_settings_stay_and_are_not_measured_any_longer():
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)
    train(tuner, engine, 203, lambda step: 1.0 / vars(engine.context.communicator)["streams"])
    tuning = tuner.tuning
    assert tuning.is_done and tuning.settings.streams == 16
    assert vars(engine.context.communicator)["streams"] == 16
    before = len(engine.dispatcher.done), tuner.tuning
    train(tuner, engine, 50)
    assert (len(engine.dispatcher.done), tuner.tuning) == before
    assert all(use["fixed_order"] is False for use in engine.dispatcher.uses), "as it was given"


def test_a_run_that_goes_on_takes_up_the_settings_and_the_order_of_sums():
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)
    train(tuner, engine, 13)
    assert tuner.state_dict()["settings"] is None, "while it is not done, a search begins anew"
    train(tuner, engine, 190, lambda step: 1.0 / vars(engine.context.communicator)["streams"])
    trial = OrderTrial(given_s=1.0, fixed_s=2.0, num_turns=2)
    for other_order in (Order(is_fixed=True, trial=trial), FIXED):
        kept = {**tuner.state_dict(), "order": asdict(other_order)}
        again = in_one_bucket(Workers())
        resumed = tuner_of(again, order=Order(is_fixed=False))
        resumed.load_state_dict(kept)
        assert resumed.order == other_order
        assert again.dispatcher.uses[-1]["fixed_order"] and len(again.dispatcher.uses) == 1
        assert resumed.tuning == replace(tuner.tuning, order=other_order), "also before a step"
        assert resumed.state_dict() == kept
        again.context.step = 500
        train(resumed, again, 2)
        assert again.dispatcher.uses[-1]["streams"] == 16 and len(again.dispatcher.uses) == 2
        assert resumed.tuning == replace(tuner.tuning, order=other_order)
        assert resumed.state_dict() == kept


def test_a_run_that_goes_on_fills_buckets_in_worker_0s_order_and_asks_for_it_once():
    first = in_one_bucket(Workers())
    done = tuner_of(first)
    train(done, first, 203)
    kept = done.state_dict()
    kept["settings"] |= {"bucket_bytes": 16, "by_arrival": True}
    engine = in_one_bucket(Workers(first_says=(2, 0, 3, 1)))
    resumed = tuner_of(engine)
    resumed.load_state_dict(kept)
    assert engine.layout == [[0, 1, 2, 3]], "its own gradients have not come yet"
    train(resumed, engine, 1)
    assert engine.layout == [[2], [0], [3], [1]]
    engine.dispatcher.done.clear()
    train(resumed, engine, 20)
    assert not engine.dispatcher.done and len(rows(resumed)) == len(rows(done))


GPU = {"device": torch.device("cuda")}
OTHERS: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "lanes": ({}, 1, {"lanes": 2}),
    "streams": (GPU, 2, {"streams": 2}),
    "pattern": (GPU, 2, {"halving_doubling_bytes": 9}),
    "pieces": (GPU, 2, {"pieces": True}),
}


@pytest.mark.parametrize(("workers", "num_lanes", "saved"), OTHERS.values(), ids=OTHERS)
def test_settings_that_cannot_be_here_are_searched_anew(workers, num_lanes, saved):
    """Of a CPU's two lanes, or of gloo's transport, on GPUs, which have one lane and NCCL."""
    first = in_one_bucket(Workers())
    done = tuner_of(first)
    train(done, first, 203)
    kept = done.state_dict()
    kept["settings"] |= {"lanes": 1, **saved}
    engine = in_one_bucket(Workers(world_size=2, **workers))
    engine.dispatcher.num_lanes = engine.dispatcher.num_used = num_lanes
    resumed = tuner_of(engine)
    resumed.load_state_dict(kept)
    train(resumed, engine, 12)
    assert not engine.dispatcher.uses and engine.dispatcher.num_used == num_lanes
    train(resumed, engine, 1)
    assert len(rows(resumed)) == 1 and not resumed.tuning.is_done


def test_settings_of_gpus_are_taken_up_on_gpus():
    first = in_one_bucket(Workers(world_size=2, **GPU))
    done = tuner_of(first)
    train(done, first, 203, lambda step: 1.0 / len(first.context.buckets))
    assert len(first.layout) == 4
    engine = in_one_bucket(Workers(world_size=2, **GPU))
    resumed = tuner_of(engine)
    resumed.load_state_dict(done.state_dict())
    train(resumed, engine, 1)
    assert resumed.tuning == done.tuning and engine.layout == first.layout


def test_a_run_that_goes_on_before_the_search_is_done_searches():
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)
    kept = {**tuner.state_dict(), "order": asdict(FIXED)}
    tuner.load_state_dict(kept)
    train(tuner, engine, 13)
    assert len(rows(tuner)) == 1 and not tuner.tuning.is_done


def test_of_a_run_that_was_never_tuned_nothing_is_taken_up():
    """It has no order of sums by which buckets and streams could be tuned."""
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)
    tuner.load_state_dict(tuner_of(engine, NOTHING, Order(is_fixed=False)).state_dict())
    assert tuner.order == FIXED and not engine.dispatcher.uses


def test_whoever_is_never_tuned_takes_up_and_measures_nothing():
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine, NOTHING)
    tuner.load_state_dict({"order": None})
    train(tuner, engine, 30)
    assert tuner.tuning.is_done and tuner.state_dict()["settings"] is None
    assert not engine.dispatcher.uses and not engine.dispatcher.done


@pytest.mark.parametrize(("device", "num_waits"), [("cuda", 1), ("cpu", 0)])
def test_a_gpu_is_through_before_the_clock_is_read(monkeypatch, device, num_waits):
    engine = in_one_bucket(Workers())
    weights = SimpleNamespace(device=torch.device(device))
    engine.context.buckets = [SimpleNamespace(weights=weights, parameters=engine.parameters)]
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    tuner_of(engine).forward_begins()
    assert waits == num_waits * [torch.device(device)]


def test_pieces_by_one_stream_are_equal_parts():
    """So they are not tried again where there is one."""
    engine = in_one_bucket(Workers())
    tuner = tuner_of(engine)
    settings = tuner.tuning.settings
    kinds = {
        (streams, pieces): tuner._kind(replace(settings, streams=streams, pieces=pieces))
        for streams in (1, 2)
        for pieces in (False, True)
    }
    assert kinds[1, True] == kinds[1, False] and len(set(kinds.values())) == 3


@pytest.mark.parametrize("bucket_bytes", [100, 128, 129])
def test_the_size_to_begin_with_is_no_more_than_there_is(bucket_bytes):
    tuner = tuner_of(in_one_bucket(Workers()), bucket_bytes=bucket_bytes)
    assert tuner.tuning.settings.bucket_bytes == min(bucket_bytes, 128)


@pytest.mark.parametrize(("steps_per_round", "num_windows"), [(1, 20), (3, 25), (5, 28), (20, 9)])
def test_windows_take_no_more_than_200_steps(steps_per_round, num_windows):
    """Even if more and more streams are faster and faster."""
    engine = in_one_bucket(Workers(world_size=2))
    engine.algorithm.steps_per_round = steps_per_round
    tuner = tuner_of(engine)
    tuner.streams = tuple(range(2, 100))
    first = tuner.first
    train(tuner, engine, first + 200, lambda step: 0.99**step)
    assert tuner.tuning.is_done and len(rows(tuner)) == num_windows
    assert rows(tuner)[-1]["step"] <= first + 200


def test_a_window_may_have_one_step_alone():
    engine = Engine(SIZES, Workers())
    options = {"clock": engine.clock, "num_measured": 1, "num_settling": 0}
    tuner = Tuner(engine, ALL, FIXED, 1_000, **options)  # pyright: ignore
    train(tuner, engine, 5, lambda step: 0.5)
    assert [(row["step"], row["step_s"]) for row in rows(tuner)] == [
        (4, 0.5 * SLOWEST),
        (5, 0.5 * SLOWEST),
    ]
