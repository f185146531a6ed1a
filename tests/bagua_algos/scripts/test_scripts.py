"""Scripts that nobody here has written: right, or refused by one sentence. See `workers`."""

import pytest
import torch

from bagua_algos.communication.streams import SEVERAL
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.scripts.striped import DEAD_S
from tests.bagua_algos.scripts.training import ALGORITHMS, Results
from tests.bagua_algos.scripts.weights import MOVES


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> list[dict[str, Results]]:
    """What every script has returned on either worker."""
    return run_program_once(tmp_path_factory, "tests.bagua_algos.scripts.workers", 2)


def equal(workers: list[dict[str, Results]], script: str, ours: str, expected: str) -> bool:
    """Bit for bit, on every worker."""
    return all(torch.equal(w[script][ours], w[script][expected]) for w in workers)


@pytest.mark.parametrize(
    "script",
    [
        *("two_models", "own_collectives", "copies", "more_parameters", "part_of_dropped"),
        *("one_releases", "kept_weights", "second_order"),
    ],
)
def test_it_trains_as_by_ddp(workers, script):
    for worker in workers:
        results = worker[script]
        torch.testing.assert_close(results["ours"], results["expected"], rtol=0, atol=1e-6)
        assert torch.equal(results["ours"], workers[0][script]["ours"])


@pytest.mark.parametrize("algorithm", ["Decentralized", "SGP"])
@pytest.mark.parametrize("way", ["method", "eval", "compiled before", "looks on"])
def test_an_algorithm_starts_at_the_first_gradient_where_forward_was_not_called(
    workers, algorithm, way
):
    assert equal(workers, "no_forward", f"{algorithm} {way}", f"{algorithm} forward")


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("change", "in_place"), MOVES.items(), ids=lambda x: x.__name__)
def test_weights_that_leave_their_buckets_are_taken_back(workers, name, change, in_place):
    script = "moved_weights"
    assert equal(workers, script, f"{name} {change.__name__}", f"{name} {in_place.__name__}")


def test_memory_formats_are_kept(workers):
    """That of before distribute is, and Adam's moments follow it; a later one is warned of."""
    results = workers[0]["moved_weights"]
    assert results["is channels_last"]
    ours, expected = (results[f"QAdam {name}"] for name in ("channels_last before", "contiguous"))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    assert len(results["warnings"]) == 1
    assert "call model.to(memory_format=...) before distribute()" in results["warnings"][0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_closure_changes_nothing(workers, name):
    assert equal(workers, "closures", f"{name} run", f"{name} in_turn")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_compiled_model_trains_alike(workers, name):
    assert equal(workers, "compiled", f"{name} True", f"{name} False")


# Decentralized averages once a backward pass, of which there are more without no_sync().
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "decentralized"])
def test_accumulation_needs_no_sync_for_speed_alone(workers, name):
    for worker in workers:
        results = worker["accumulation"]
        ours, expected = results[f"{name} False"], results[f"{name} True"]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_two_models_in_one_backward_pass_may_have_another_order_on_another_worker(workers):
    assert equal(workers, "other_order", "ours", "expected")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_worker_without_examples_adds_nothing_within_no_sync_either(workers, name):
    assert equal(workers, "out_of_examples", f"{name} True", f"{name} False")


@pytest.mark.parametrize(
    "case",
    [
        *("all_reduce", "later", "qadam", "decentralized", "before post-local", "async warm-up"),
        *("in place", "no_sync"),
    ],
)
def test_a_step_on_gradients_that_no_backward_pass_has_made_is_refused(workers, case):
    for worker in workers:
        sentence = worker["own_gradients"][case]
        assert sentence.startswith("'2.bias' of shape (3,) has a gradient that no backward pass of")
        assert "call backward() on the distributed model's loss, or average" in sentence


@pytest.mark.parametrize(
    "case",
    [
        *("sgp", "local_sgd", "post-local", "async", "second step", "zeros", "nothing"),
        *("averaged, in no_sync", "inputs"),
    ],
)
def test_a_step_without_a_backward_pass_is_taken_where_workers_do_not_meet_in_one(workers, case):
    """Or where there is nothing new to step on."""
    assert [worker["own_gradients"][case] for worker in workers] == ["", ""]
    assert torch.equal(*(worker["own_gradients"]["ours"] for worker in workers))


def test_copies_and_files_are_plain(workers):
    for worker in workers:
        results = worker["copies"]
        assert results["same"]
        assert results["plain"]
        assert not results["engine in file"]
        assert results["apart"]
        assert results["released"]
        assert results["size"] == results["plain size"]
        assert results["head's size"] == results["plain head's size"]


@pytest.mark.parametrize("ours", ["evaluated", "saved"])
def test_the_consensus_is_evaluated_and_saved_also_in_inference_mode(workers, ours):
    for worker in workers:
        results = worker["evaluations"]
        torch.testing.assert_close(results[ours], results["mean"], rtol=0, atol=1e-6)
        assert results["returned"]


@pytest.mark.parametrize("name", [*ALGORITHMS, "top_k", "power_sgd"])
def test_a_resumed_script_is_the_unbroken_one_to_the_bit(workers, name):
    assert equal(workers, "resumed", f"{name} True", f"{name} False")


def test_another_optimizer_may_use_gradients_that_are_averaged(workers):
    """But not change weights that the algorithm acts on."""
    results = workers[0]["more_parameters"]
    assert results["AllReduce second optimizer"] == ""
    assert results["LocalSGD second optimizer"].startswith("'2.weight' of shape (3, 16) belongs to")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("hook", ["clip_in_place", "clip_a_copy"])
def test_what_a_scripts_hook_makes_of_its_own_gradient_is_averaged(workers, hook, is_first):
    for worker in workers:
        results = worker["gradient_hooks"]
        ours, expected = results[f"{hook} {is_first}"], results["expected"]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("algorithm", ["AllReduce", "LocalSGD"])
def test_an_optimizer_that_steps_within_backward_is_refused(workers, algorithm, is_first):
    for worker in workers:
        results = worker["optimizer_in_backward"]
        stepped, by_hand, in_place = (
            results[f"{algorithm} {how} {is_first}"]
            for how in ("optimizers", "by hand", "in place")
        )
        assert "during backward, by a gradient that workers have not averaged" in stepped
        assert stepped.endswith("call the distributed optimizer's step() after backward()")
        assert by_hand.startswith("a hook has taken the gradient of a parameter of shape")
        assert "was changed during backward, before workers have averaged" in in_place


def test_weights_that_differ_and_should_not_are_averaged_and_warned_of(workers):
    own = torch.cat([worker["apart"]["apart own"] for worker in workers])
    mean = own.mean(0)
    spread = ((own - mean).square().sum(1).mean() / mean.square().sum()).sqrt().item()
    for worker in workers:
        results = worker["apart"]
        assert results["equal"] == (0.0, [])
        measured, [sentence] = results["apart"]
        assert measured == pytest.approx(spread, rel=1e-5)
        assert f"differ by {spread:.1g} of their norm, and AllReduce keeps them equal" in sentence
        torch.testing.assert_close(results["apart within"], mean[None])


def test_streams_change_no_sum_but_by_rounding_and_nothing_that_only_moves(workers):
    for worker in workers:
        results = worker["streams"]
        ours, expected = results["AllReduce 3"], results["AllReduce 1"]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        assert torch.equal(ours, workers[0]["streams"]["AllReduce 3"])
        for name in ("CompressedAllReduce", "Decentralized"):
            assert torch.equal(results[f"{name} 3"], results[f"{name} 1"])


def test_torch_ddp_over_streams_is_torch_ddp(workers):
    assert equal(workers, "streams", "TorchDDP 3", "TorchDDP 1")


def test_workers_agree_on_how_many_streams_they_measured(workers):
    trials = [worker["measured_streams"]["trial"] for worker in workers]
    assert trials[0] == trials[1]
    assert trials[0]["streams"] in trials[0]["seconds"].keys() == {1, SEVERAL}
    assert trials[0]["num_turns"] >= 1
    assert {worker["measured_streams"]["streams"] for worker in workers} == {trials[0]["streams"]}


def test_threads_and_sockets_of_streams_are_used_again(workers):
    for worker in workers:
        files, threads = zip(*worker["measured_streams"]["held"], strict=True)
        assert max(files[1:]) <= files[0]
        assert max(threads[1:]) <= threads[0] + 1  # of a lane that is about to end; a group has 3


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        *(("default", True), ("True", True), ("streams and True", True), ("autotune", True)),
        ("buckets", True),
        *(("a communicator and True", True), ("False", False), ("streams", False)),
        *(("pattern", False), ("a communicator", False), ("without memory", False)),
    ],
)
def test_all_reduces_go_through_shared_memory_where_a_script_says_nothing_else(
    workers, options, shares
):
    """The sum of two numbers has the same bits either way."""
    for worker in workers:
        is_shared, weights = worker["shared_memory"][options]
        assert is_shared == shares
        assert torch.equal(weights, worker["shared_memory"]["False"][1])


def test_memory_is_given_back(workers):
    """After models that were released, and one that was dropped."""
    assert [worker["shared_memory"]["held"] for worker in workers] == [[0, 0, 0]] * 2


def test_a_worker_that_takes_no_step_is_named_after_the_limit_of_distribute(workers):
    begin, _, end = workers[0]["shared_memory"]["silent"].partition(" failed after ")
    assert begin == "worker 0: all_reduce_mean with worker 1"
    assert 1 <= float(end.partition(" s: ")[0]) < 10
    assert end.partition(" s: ")[2] == "worker 1: silent for 1 s"


def test_a_script_is_told_where_memory_could_not_be_shared(workers):
    why = "worker 1: no memory to share: [Errno 12] Cannot allocate memory"
    sentence = f"all-reduces go over gloo, not through shared memory: {why}"
    for worker in workers:
        assert set(worker["shared_memory"]["warnings"]) == {sentence}
        assert worker["shared_memory"]["required"] == f"shared_memory=True cannot be: {why}"


@pytest.mark.parametrize("pattern", ["ring", "halving_doubling", "auto"])
@pytest.mark.parametrize("number", [1, 3])
def test_every_pattern_gives_the_mean_of_two_workers(workers, pattern, number):
    expected = workers[0]["patterns"]["ring 1"]
    for worker in workers:
        assert torch.equal(worker["patterns"][f"{pattern} {number}"], expected)
        assert equal([worker], "patterns", f"trained {pattern}", "trained ring")


@pytest.mark.parametrize(
    "operation", ["all_reduce_mean", "exchange", "all_to_all", "all_gather", "broadcast"]
)
def test_a_stream_that_is_dead_is_named_after_the_groups_limit(workers, operation):
    error = workers[0]["dead_stream"][operation]
    begin, _, rest = error.partition(" failed after ")
    assert begin == f"worker 0: {operation} with worker 1"
    assert DEAD_S <= float(rest.partition(" s: ")[0]) < 60
    assert "stream 2 of 3: " in rest
    assert "\n" not in error


@pytest.mark.parametrize("script", ["streams", "measured_streams"])
def test_every_striped_operation_moves_all_of_its_data(workers, script):
    everyone = torch.arange(2 * 40_000.0).view(1, 2, -1) + torch.tensor([[[0.0]], [[1e6]]])
    for rank, worker in enumerate(workers):
        results = worker[script]
        assert torch.equal(results["all_to_all"][0], everyone[:, rank])
        assert torch.equal(results["all_gather"][0], everyone[:, 0])
        assert torch.equal(results["exchange"][0], everyone[1 - rank, 0])
        assert torch.equal(results["broadcast"][0], everyone[1, 0])


@pytest.mark.parametrize(
    ("script", "case", "sentence"),
    [
        ("accumulation", "never", "leave the last micro-batch's backward out of no_sync()"),
        ("closures", "several calls", "choose one that calls it once"),
        ("moved_weights", "double", "'3.bias' of shape (3,) is float64 on cpu now and was float32"),
        ("kept_weights", "consensus", "was given other memory while its old one, which lies in a"),
        (
            "kept_weights",
            "forward",
            "keep a clone() of it, del what keeps it, or change weights by copy_()",
        ),
        ("more_parameters", "AllReduce new module", "'3.weight' of shape (3, 3) was added to the"),
        ("more_parameters", "LocalSGD new module", "'3.weight' of shape (3, 3) was added to the"),
        ("more_parameters", "AllReduce new module elsewhere", "and another optimizer is about to"),
        ("more_parameters", "LocalSGD new module elsewhere", "and another optimizer is about to"),
        ("more_parameters", "assigned", "was replaced after the model was distributed"),
        ("wrapped", "twice", "distributed already: release() that one first"),
        ("wrapped", "within", "shares parameters with one that is distributed already"),
        ("wrapped", "a part", "shares parameters with one that is distributed already"),
        ("wrapped", "ddp within", "distribute the plain model in its place"),
        ("wrapped", "ddp around", "call the model itself"),
        ("streams", "none", "streams must be 1 to 16, got 0"),
        ("streams", "too many", "streams must be 1 to 16, got 17"),
        ("streams", "word", "streams must be 1 to 16, or auto, got 'many'"),
        ("streams", "fraction", "streams must be 1 to 16, or auto, got 2.5"),
        ("streams", "truth", "streams must be 1 to 16, or auto, got True"),
        (
            "patterns",
            "wrong",
            "pattern must be one of ring, halving_doubling, direct, auto, got 'tree'",
        ),
        ("patterns", "stacked", "pattern=halving_doubling is of real workers, whose communicator"),
        (
            "shared_memory",
            "contradiction",
            "have no pattern: leave out pattern='direct' or shared_memory",
        ),
        ("shared_memory", "elsewhere", "shared_memory=True is for models on the CPU: leave it out"),
        ("shared_memory", "stacked", "for gloo's workers, and these are StackedCommunicator's"),
        ("streams", "stacked", "streams=4 are of real workers, whose communicator is a"),
        ("types", "complex TopK", "'weight': complex64 is not supported by TopK"),
        ("types", "complex PowerSGD", "'weight': complex64 is not supported by PowerSGD"),
        ("copies", "torchscript", "torch.jit.script cannot compile a distributed model: give it"),
        ("types", "meta", "'weight' is on the meta device"),
        ("types", "sparse", "'adjacency' is sparse_coo, and buffers and frozen parameters travel"),
        ("types", "expanded", "'scale' has elements that share their memory, as expand() makes"),
        ("reentrant", "refused", "use_reentrant=False"),
        ("second_order", "graph", "take gradients of gradients from torch.autograd.grad(loss, "),
        ("part_of_dropped", "refused", "were of a distributed model that is gone"),
        ("resumed", "another", "this state is of another algorithm: LocalSGD, and here it is SGP"),
    ],
)
def test_what_cannot_be_right_is_refused_on_every_worker(workers, script, case, sentence):
    for worker in workers:
        assert sentence in worker[script][case]
        assert "\n" not in worker[script][case]


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        (
            "order",
            ", from the trainable 'a.weight' of shape (4, 4) in float32 on",
            ", from the trainable 'b.weight' of shape (4, 4) in float32 on",
        ),
        (
            "shape",
            "'weight' of shape (8, 4) in float32 on",
            "'weight' of shape (4, 8) in float32 on",
        ),
        (
            "type",
            "'0.weight' of shape (16, 6) in float32 on",
            "'0.weight' of shape (16, 6) in float64",
        ),
        ("frozen", "the frozen '0.weight' of shape (16, 6)", "the trainable '0.weight' of shape"),
        ("fewer", "the trainable 'c.weight' of", "which goes on after the trainable 'b.weight' of"),
        (
            "fewer buckets",
            "the trainable 'b.weight' of",
            "which goes on after the trainable 'a.weight'",
        ),
        (
            "buffer's name",
            "the buffer 'x' of shape (2,)",
            "the buffer 'y' of shape (2,) in float32 on",
        ),
        (
            "buffer's shape",
            "the buffer 'x' of shape (2,)",
            "the buffer 'x' of shape (3,) in float32 on",
        ),
        ("memory format", "of shape (8, 2, 3, 3) in float32 on", "in float32, channels_last on"),
    ],
)
def test_workers_that_have_built_different_models_are_told(workers, case, first, second):
    for rank, part in enumerate((first, second)):
        sentence = workers[rank]["different_models"][case]
        assert sentence.startswith(f"worker {rank}'s model differs from worker {1 - rank}'s, ")
        assert part in sentence
        assert sentence.endswith("in an order that no set and no random number decides")


@pytest.mark.parametrize("memory", [None, False])
@pytest.mark.parametrize(
    ("table", "shapes", "mean"),
    [
        ("numbers", ("(4,) in float32", "(6,) in float32"), 0.5),
        ("truths", ("(4, 4) in bool", "(6, 6) in bool"), 1.0),
    ],
)
def test_a_buffer_that_has_grown_apart_is_refused_by_the_consensus(
    workers, table, shapes, mean, memory
):
    first, second = (
        f"worker {rank} has the buffer 'table' of shape {shape}"
        for rank, shape in enumerate(shapes)
    )
    for worker in workers:
        sentence = worker["grown_buffers"][f"{table} {memory}"]
        assert sentence.startswith(f"{first} and {second}, so that they cannot be averaged: ")
        assert worker["grown_buffers"][f"{table} within"].eq(mean).all()


def test_a_model_is_the_same_where_one_worker_has_compiled_it(workers):
    assert [worker["different_models"]["compiled"] for worker in workers] == ["", ""]


def test_complex_weights_train_by_all_reduce(workers):
    assert torch.equal(workers[0]["types"]["ours"], workers[1]["types"]["ours"])


def test_what_a_script_drops_is_gone_with_its_threads(workers):
    assert [worker["dropped"] for worker in workers] == [{"alive": [], "threads": 0}] * 2
