"""Lightning's Trainer with RelaxedStrategy, on 2 gloo workers."""

from importlib.util import find_spec

import pytest
import torch

import bagua_algos
from bagua_algos import LocalSGD
from bagua_algos.communication.rendezvous import file_rendezvous
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.trainers import checks
from tests.bagua_algos.trainers.plain_loop import ALGORITHMS

pytestmark = pytest.mark.skipif(
    find_spec("pytorch_lightning") is None, reason="the extra lightning is not installed"
)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    module = "tests.bagua_algos.trainers.lightning_workers"
    return run_program_once(tmp_path_factory, module, 2, strict=False)


def of(workers, name):
    return [worker[name] for worker in workers]


@pytest.mark.parametrize("precision", ["", " in fp16"])
def test_all_reduce_equals_lightnings_ddp(workers, precision):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights[f"relaxed{precision}"], weights[f"ddp{precision}"])


def test_several_streams_train_the_same(workers):
    for weights in of(workers, "like ddp"):
        assert checks.are_equal(weights["over streams"], weights["ddp"])


def test_an_algorithm_that_remembers_trains_in_fp16(workers):
    mine, others = of(workers, "half with memory")
    assert checks.are_equal(mine, others)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_fit_equals_a_plain_loop(workers, name):
    checks.check_equals_a_loop(of(workers, name))


@pytest.mark.parametrize("way", ["compiled", "manual"])
def test_compiled_and_manual_modules_equal_a_plain_loop(workers, way):
    for weights in of(workers, "other ways"):
        assert checks.are_equal(weights[way], weights["loop"])


def test_what_travels_during_forward_starts_before_it(workers):
    assert [ways["unheard"] for ways in of(workers, "other ways")] == [0, 0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checkpoint_resumes_bit_for_bit(workers, name):
    checks.check_resumes(of(workers, name))


def test_a_worker_that_is_new_resumes_by_worker_0s_part(workers):
    checks.check_resumes(of(workers, "grown"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_validation_and_checkpoints_are_of_the_consensus_which_remains(workers, name):
    names = ["evaluated", "saved", "at the end"]
    checks.check_is_the_mean(of(workers, name), names, ALGORITHMS[name][0])


def test_the_balanced_sampler_deals_each_example_once_an_epoch(workers):
    checks.check_each_is_dealt_once_an_epoch(of(workers, "dealt"))


def test_a_checkpoint_is_removed_with_the_workers_parts(workers):
    assert of(workers, "removed") == [["epoch=2.ckpt", "epoch=2.ckpt.workers"]] * 2


@pytest.mark.parametrize(
    ("what", "sentence"),
    {
        "two optimizers": "configure_optimizers has returned 2 optimizers",
        "LBFGS": "the optimizer calls its closure several times a step",
        "schedule-free": "choose another optimizer, or an algorithm whose workers agree",
        "streams": "streams must be 1 to 16, or auto, got 17",
        "pattern": "pattern must be one of ring, halving_doubling, direct, auto, got 'tree'",
        "no file of its own": "call load_from_checkpoint and give fit no ckpt_path",
        "of another step": "is of step 6, and .* of step 3: .* another checkpoint; or .* unequal",
        "of another algorithm": "of another algorithm: LocalSGD, and here it is Decentralized",
    }.items(),
)
def test_what_is_not_supported_is_refused(workers, what, sentence):
    checks.check_is_refused(of(workers, "refused"), what, sentence)


def test_a_failure_within_validation_leaves_the_consensus(tmp_path):
    """So that a notebook that catches it can release the model, and fit it again."""
    from bagua_algos.trainers.lightning import RelaxedStrategy
    from tests.bagua_algos.trainers.lightning_workers import Module, plain_loop

    module = Module(plain_loop.make_sgd, by_forward=True)
    strategy = RelaxedStrategy(LocalSGD(interval=8))
    strategy.connect(module)
    store = str(tmp_path / "store")
    with file_rendezvous(store, backend="gloo", rank=0, world_size=1, timeout_s=10):
        bagua_algos.distribute(module, module.configure_optimizers(), strategy.algorithm)
        own = [p.detach().clone() for p in module.parameters()]
        strategy.on_validation_start()
        for p in module.parameters():
            p.data.fill_(9.0)  # another mean than this worker's own
        strategy.on_exception(RuntimeError())
        assert all(map(torch.equal, own, module.parameters()))
        bagua_algos.release(module)
