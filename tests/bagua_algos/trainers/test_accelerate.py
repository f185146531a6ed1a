"""Accelerate with RelaxedAccelerator, on 2 gloo workers."""

from importlib.util import find_spec

import pytest

from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.trainers import checks
from tests.bagua_algos.trainers.plain_loop import ALGORITHMS

pytestmark = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="the extra accelerate is not installed"
)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    module = "tests.bagua_algos.trainers.accelerate_workers"
    return run_program_once(tmp_path_factory, module, 2, strict=False)


def of(workers, name):
    return [worker[name] for worker in workers]


@pytest.mark.parametrize("precision", ["", " in fp16"])
def test_all_reduce_equals_accelerates_ddp(workers, precision):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights[f"relaxed{precision}"], weights[f"ddp{precision}"])


def test_several_streams_train_the_same(workers):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights["over streams"], weights["ddp"])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_equals_a_plain_loop(workers, name):
    checks.check_equals_a_loop(of(workers, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_scaler_that_is_a_power_of_two_changes_nothing(workers, name):
    for worker in of(workers, name):
        assert checks.are_equal(worker["scaled"], worker["at the end"])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checkpoint_resumes_bit_for_bit(workers, name):
    checks.check_resumes(of(workers, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_saved_model_is_the_consensus_which_remains(workers, name):
    checks.check_is_the_mean(of(workers, name), ["saved", "at the end"], ALGORITHMS[name][0])


def test_the_end_of_training_leaves_a_plain_model_with_the_consensus(workers):
    ended = of(workers, "ended")
    checks.check_is_the_mean(ended, ["at the end"], ALGORITHMS["decentralized"][0])
    assert all(worker["is plain"] for worker in ended)


@pytest.mark.parametrize(
    ("what", "sentence"),
    {
        "alone": "this process is alone, .*: start with torchrun or accelerate launch",
        "DDP's options": "give bucket_bytes or find_unused_parameters",
        "FSDP": "fsdp_plugin shards a model, .*: leave fsdp_plugin out",
        "joining": r"calls bagua_algos.empty_backward\(model\) in place of each backward",
        "two optimizers": "trains by one optimizer: give it all parameters",
        "a model too late": r"give prepare\(\) one model, before its optimizer",
        "no optimizer": r"prepare\(\) has to be given the model and its optimizer",
        "LBFGS": "the optimizer calls its closure several times a step",
        "schedule-free": "choose another optimizer, or an algorithm whose workers agree",
        "too early": r"load_state\(\) has to come after prepare\(\)",
        "balanced": "the loader's sampler deals .*: do not prepare the loader, and call",
        "streams": "streams must be 1 to 16, or auto, got 17",
        "pattern": "pattern must be one of ring, halving_doubling, direct, auto, got 'tree'",
        "no file of its own": r"load model.safetensors before prepare\(\)",
        "of another step": r"are of steps \[3, 4\]: .* another checkpoint; or .* unequal",
        "of another algorithm": "of another algorithm: Decentralized, and here it is AllReduce",
    }.items(),
)
def test_what_is_not_supported_is_refused(workers, what, sentence):
    checks.check_is_refused(of(workers, "refused"), what, sentence)
