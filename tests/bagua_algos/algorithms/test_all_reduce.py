import functools

import pytest
import torch

from bagua_algos import AllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import make_model, make_optimizer, on_worker_axis, take_step
from tests.bagua_algos.gradient_oracle import (
    NUM_PARAMETERS,
    averages,
    given_gradients,
    oracle,
    train,
)
from tests.bagua_algos.recorder import Recorder


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_all_reduce_is_the_mean(world_size):
    expected = oracle(world_size, lambda _, gradients: gradients.mean(0))
    torch.testing.assert_close(train(world_size, AllReduce())[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize(("wire", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_narrow_wire_rounds_as_torchs_hook_does(world_size, wire, dtype):
    """torch's hook casts, divides, and adds up in the wire's type, rounding at each hop; we divide
    a sum of bf16 afterwards, which is the same where N is a power of two. It is compared on given
    gradients: a model's, which two programs round otherwise, may lie on both sides of a tie.
    """

    def hook(_, gradients):
        quotients = gradients.to(dtype).div_(world_size)
        return functools.reduce(torch.add, quotients).float()

    given = given_gradients(world_size)
    if world_size != 3 or wire == "fp16":
        hooked = torch.stack([hook(None, gradients) for gradients in given])
        for own in averages(AllReduce(wire=wire), given).unbind(1):
            torch.testing.assert_close(own, hooked, rtol=0, atol=0)
    ours, exact = train(world_size, AllReduce(wire=wire))[0], train(world_size, AllReduce())[0]
    theirs = oracle(world_size, hook)
    distance = (theirs - exact).norm()
    assert 0 < (ours - exact).norm() < 2 * distance
    assert (ours - theirs).norm() < 2 * distance


def test_a_sum_beyond_the_range_of_fp16_has_a_mean_within_it():
    gradients = torch.full((1, 4, NUM_PARAMETERS), 40000.0)
    assert torch.equal(averages(AllReduce(wire="fp16"), gradients), gradients)


def test_one_worker_with_a_narrow_wire_is_plain_torch_up_to_the_cast():
    expected = oracle(1, lambda _, gradients: gradients[0].bfloat16().float())
    torch.testing.assert_close(train(1, AllReduce(wire="bf16"))[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("wire", "num_bytes"), [(None, 4), ("bf16", 2), ("fp16", 2)])
def test_messages_are_as_wide_as_the_wire(wire, num_bytes):
    recorder = Recorder()
    train(4, AllReduce(wire=wire), num_steps=1, observer=recorder)
    padded = -(-NUM_PARAMETERS // 64) * 64
    assert recorder.messages == [("all_reduce_mean", num_bytes * padded)]


@pytest.mark.parametrize("wire", ["fp8_e4m3", "fp32", "BF16"])
def test_a_wire_that_cannot_add_up_is_refused(wire):
    with pytest.raises(ValueError, match=f"wire must be bf16, fp16 or None, got '{wire}'.*Cast"):
        AllReduce(wire=wire)


@pytest.mark.parametrize("wire", [None, "bf16"])
def test_other_buckets_change_no_bit_which_it_promises(wire):
    algorithm, weights, numbers = AllReduce(wire=wire), [], []
    for bucket_bytes in (256, 1 << 20):
        workers = StackedCommunicator(3)
        model = on_worker_axis(make_model(), workers)
        optimizer = make_optimizer(model)
        engine = Engine(model, optimizer, algorithm, workers, bucket_bytes=bucket_bytes)
        for step in range(2):
            take_step(model, optimizer, step, workers.ranks)
        numbers.append(len(engine.context.buckets))
        engine.close()
        weights.append([p.detach().clone() for p in model.parameters()])
    assert not algorithm.depends_on_buckets and numbers[0] > numbers[1] == 1
    assert all(map(torch.equal, *weights))


def test_only_a_flat_one_averages_and_does_nothing_else():
    """Between nodes it adds up within each of them before, and tells them afterwards."""
    assert AllReduce().only_averages and not AllReduce(hierarchical=True).only_averages
