"""Autotuning on real workers, and what is refused or left out."""

import warnings

import pytest
import torch

import bagua_algos
from bagua_algos import AllReduce, AsyncModelAverage, ByteGrad, LocalSGD
from bagua_algos.autotune.order import OrderTrial, conclusion
from bagua_algos.autotune.scope import MOST_STEPS, scope
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.fsdp2.checks import check_options
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.autotune.cases import ROWS_TUNED, SAVED, STRIPED
from tests.bagua_algos.cases import WORLD_SIZE, make_model, make_optimizer
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.rows import ROWS

FLOAT32 = {torch.float32}
TRIED = ["given_s", "fixed_s", "several_s", "smaller_s"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return run_program_once(tmp_path_factory, "tests.bagua_algos.training_workers", WORLD_SIZE)


@pytest.mark.parametrize("name", ROWS_TUNED)
def test_tuned_workers_have_the_bits_of_workers_never_tuned(workers, name):
    for worker in workers:
        found = worker[f"tuned {name}"]
        assert found["settings"] == workers[0][f"tuned {name}"]["settings"], "all agree"
        others = ["tuned", *(["resumed"] if name in SAVED else [])]
        for other in others:
            assert found[other].keys() == found["never"].keys()
            for key, expected in found["never"].items():
                assert torch.equal(found[other][key], expected), f"{other}: {key}"


@pytest.mark.parametrize("name", ROWS_TUNED)
def test_it_has_tried_other_settings(workers, name):
    found = workers[0][f"tuned {name}"]
    layouts, streams = zip(*found["settings"], strict=True)
    assert (len(set(layouts)) > 2) == (not ROWS[name]().depends_on_buckets)
    assert (2 in streams) == (name in STRIPED)
    assert bool(found["left_out"]) == ROWS[name]().depends_on_buckets


@pytest.mark.parametrize("order", ["ring", "direct"])
def test_the_order_of_sums_is_chosen_before_the_first_step(workers, order):
    """And kept by a run that goes on, though it has measured the opposite."""
    for worker in workers:
        found = worker["tuned by the ring"]
        for key, expected in found[f"never {order}"].items():
            assert torch.equal(found[f"tuned {order}"][key], expected), key
            assert torch.equal(found[f"resumed {order}"][key], expected), key
        assert found[f"tuning {order}"] == workers[0]["tuned by the ring"][f"tuning {order}"]
    found = workers[0]["tuned by the ring"]
    rings, directs = found["never ring"].values(), found["never direct"].values()
    assert not all(map(torch.equal, rings, directs)), "else nothing here could fail"


def test_beside_the_ring_lanes_alone_are_tuned(workers):
    tuning = workers[0]["tuned by the ring"]["tuning ring"]
    assert {row["lanes"] for row in tuning["windows"]} == {1, 2}
    assert len({row["num_buckets"] for row in tuning["windows"]}) == 1
    assert {row["streams"] for row in tuning["windows"]} == {1}, "those given, after the trial too"
    assert not tuning["order"]["is_fixed"]
    assert min(tuning["order"]["trial"][name] for name in TRIED) > 0
    [sentence] = tuning["left_out"]
    assert sentence.startswith("the pattern of all-reduces is faster as it is")


def concluded(turns: list[tuple[float, ...]]) -> OrderTrial:
    return conclusion([dict(zip(TRIED, turn, strict=False)) for turn in turns])


@pytest.mark.parametrize(("smaller_s", "is_fixed"), [(1.0, True), (1.02, True), (1.05, False)])
def test_it_is_enough_that_a_fixed_order_is_as_fast_in_smaller_buckets(smaller_s, is_fixed):
    trial = conclusion([{"given_s": 1.0, "fixed_s": 2.0, "smaller_s": smaller_s}])
    assert (trial.best_fixed_s, trial.is_fixed, trial.is_clear) == (smaller_s, is_fixed, False)


@pytest.mark.parametrize(("fixed_s", "is_fixed"), [(1.0, True), (1.02, True), (1.05, False)])
def test_the_median_of_turns_decides_and_a_tie_fixes_the_order(fixed_s, is_fixed):
    trial = concluded([(1.0, fixed_s), (9.0, fixed_s), (0.9, 9.0)])
    assert (trial.given_s, trial.fixed_s, trial.num_turns) == (1.0, fixed_s, 3)
    assert trial.is_fixed == is_fixed and not trial.is_clear
    assert concluded([(1.0, 0.6)]).is_clear and concluded([(1.0, 1.6)]).is_clear


@pytest.mark.parametrize(("several_s", "is_fixed"), [(0.6, True), (0.7, False)])
def test_several_streams_that_are_much_faster_fix_the_order(several_s, is_fixed):
    """By one stream both orders are as slow as each other, over a far network."""
    trial = concluded([(1.0, 1.1, several_s), (1.0, 1.1, several_s)])
    assert (trial.several_s, trial.is_fixed, trial.is_clear) == (several_s, is_fixed, is_fixed)


def test_simulated_workers_are_refused():
    model = StackedModel(make_model(), 2)
    with pytest.raises(ValueError, match="autotune=True measures real workers"):
        bagua_algos.distribute(
            model, make_optimizer(model), AllReduce(), StackedCommunicator(2), autotune=True
        )
    assert not bagua_algos.is_distributed(model)


def test_without_autotune_there_is_nothing_to_tell():
    model = make_model()
    bagua_algos.distribute(model, make_optimizer(model), AllReduce(), StackedCommunicator(1))
    assert bagua_algos.tuning(model) is None
    bagua_algos.release(model)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (AsyncModelAverage(), "depend on when averages arrive: nothing"),
        (LocalSGD(interval=50), "repeats its work after 50 steps, too many"),
    ],
)
def test_what_cannot_be_tuned_is_said(algorithm, said):
    own = scope(algorithm, StackedCommunicator(4), FLOAT32)
    assert not (own.tunes_lanes or own.tunes_transport or own.tunes_buckets)
    assert said in own.left_out[0]


@pytest.mark.parametrize(
    ("algorithm", "dtypes", "said"),
    [
        (ByteGrad(), FLOAT32, "depends on buckets: they stay"),
        (AllReduce(), {torch.float32, torch.bfloat16}, "16-bit numbers by their place"),
    ],
)
def test_where_buckets_must_stay_the_rest_is_tuned(algorithm, dtypes, said):
    own = scope(algorithm, StackedCommunicator(4), dtypes)
    assert own.tunes_transport and not own.tunes_buckets
    assert said in own.left_out[0]


def test_a_worker_alone_is_not_warned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = scope(AllReduce(), StackedCommunicator(1), FLOAT32)
    assert not own.tunes_lanes and MOST_STEPS == 200


def test_sharded_models_are_refused():
    with pytest.raises(ValueError, match="autotune is not for a model that fully_shard"):
        check_options(
            has_bucket_bytes=False,
            finds_unused_parameters=False,
            has_grad_scaler=False,
            autotunes=True,
        )
