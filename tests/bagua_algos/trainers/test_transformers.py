"""transformers' Trainer as RelaxedTrainer, on 2 gloo workers."""

from importlib.util import find_spec

import pytest

from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.trainers import checks
from tests.bagua_algos.trainers.plain_loop import ALGORITHMS

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="the extra transformers is not installed",
)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    module = "tests.bagua_algos.trainers.transformers_workers"
    return run_program_once(tmp_path_factory, module, 2, strict=False)


def of(workers, name):
    return [worker[name] for worker in workers]


@pytest.mark.parametrize("case", ["", " counting"])
def test_all_reduce_equals_the_trainers_ddp(workers, case):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights[f"relaxed{case}"], weights[f"ddp{case}"])


def test_several_streams_train_the_same(workers):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights["over streams"], weights["ddp"])


@pytest.mark.parametrize("name", [*ALGORITHMS, "compiled"])
def test_training_equals_a_plain_loop(workers, name):
    checks.check_equals_a_loop(of(workers, name))


def test_workers_that_differ_count_their_own_labels(workers):
    checks.check_equals_a_loop(of(workers, "counting alone"))
    assert all(worker["the caller's"] for worker in of(workers, "counting alone"))


def test_a_loader_of_the_balanced_sampler_that_is_not_prepared_deals_each_example_once(workers):
    checks.check_each_is_dealt_once_an_epoch(of(workers, "dealt"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checkpoint_resumes_bit_for_bit(workers, name):
    checks.check_resumes(of(workers, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluation_and_checkpoints_are_of_the_consensus_which_remains(workers, name):
    names = ["evaluated", "saved", "at the end"]
    checks.check_is_the_mean(of(workers, name), names, ALGORITHMS[name][0])


@pytest.mark.parametrize(
    ("what", "sentence"),
    {
        "alone": "this process is alone, .*: start with torchrun or accelerate launch",
        "not prepared": "prepares training in another way, .*: install transformers",
        "LOMO": "does not support optim=lomo: leave it",
        "batch sizes that are looked for": "does not support auto_find_batch_size=True: leave it",
        "DDP's options": "does not support ddp_broadcast_buffers=True: leave it",
        "FSDP": "does not support fsdp=True: leave it",
        "DeepSpeed": "does not support deepspeed=deepspeed.json: leave it",
        "sharded when it was loaded": "call from_pretrained without a distributed_config",
        "schedule-free": "choose another optimizer, or an algorithm whose workers agree",
        "balanced": "the loader's sampler deals .*: do not prepare the loader, and call",
        "streams": "streams must be 1 to 16, or auto, got 17",
        "pattern": "pattern must be one of ring, halving_doubling, direct, auto, got 'tree'",
        "no file of its own": "call from_pretrained and give train no resume_from_checkpoint",
        "of another step": "is of step 6 in place of 3: .* another checkpoint; or .* unequal",
        "of another algorithm": "of another algorithm: Decentralized, and here it is AllReduce",
    }.items(),
)
def test_what_is_not_supported_is_refused(workers, what, sentence):
    checks.check_is_refused(of(workers, "refused"), what, sentence)
