"""The decision that everything rests on: the same text on real workers and on the worker axis."""

import pytest
import torch

from bagua_algos import AllReduce, ByteGrad
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.cases import (
    NUM_STEPS,
    WORLD_SIZE,
    average_gradients_,
    backward,
    batch,
    losses,
    make_model,
    train,
)
from tests.bagua_algos.rows import LEARNING_RATE, MOMENTUM, make_optimizer

DTYPES = ("float64", "complex64")


@pytest.mark.parametrize("case", ["collectives", *(f"collectives of {t}" for t in DTYPES)])
def test_collectives_move_the_same_numbers(real, simulated, case):
    for name, expected in simulated[case].items():
        assert torch.equal(real[case][name], expected), name


def test_accumulated_and_idle_gradients_are_the_same(real, simulated):
    # mean over ranks of (rank + 1) * (1 + 2)
    assert torch.equal(simulated["accumulation"]["used"], torch.full((WORLD_SIZE, 6), 7.5))
    assert torch.equal(simulated["accumulation"]["idle"], torch.zeros(WORLD_SIZE, 5))
    for name, expected in simulated["accumulation"].items():
        assert torch.equal(real["accumulation"][name], expected), name


def test_all_reduce_trains_to_the_same_weights(real, simulated):
    for name, expected in simulated["all_reduce"].items():
        torch.testing.assert_close(real["all_reduce"][name], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["byte_grad", "byte_grad_with_error_feedback"])
def test_byte_grad_trains_to_the_same_weights_up_to_one_quantisation_step(real, simulated, name):
    """Sums in another order flip codes at rounding ties; momentum amplifies a flip by 1 / (1 -
    MOMENTUM).
    """
    gradients = simulated[name]["gradients"]
    quantisation_step = (gradients.max() - gradients.min()).item() / 255
    atol = LEARNING_RATE / (1 - MOMENTUM) * quantisation_step
    for key, expected in simulated[name].items():
        if "running" not in key and key != "gradients":
            torch.testing.assert_close(real[name][key], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["all_reduce", "byte_grad", "byte_grad_with_error_feedback"])
def test_workers_agree_bit_for_bit(real, name):
    for key, rows in real[name].items():
        assert torch.equal(rows, rows[:1].expand_as(rows)), key


def test_all_reduce_is_what_torch_ddp_computes(real):
    for name, expected in real["torch_ddp"].items():
        if name.startswith("module."):
            torch.testing.assert_close(real["all_reduce"][name], expected, rtol=0, atol=1e-6)


def test_byte_grad_sends_about_a_quarter_of_the_bytes(real):
    """Two messages of a byte an element each, against 2 x 4 bytes: a quarter, plus headers."""
    ratio = real["byte_grad"]["predicted bytes"] / real["all_reduce"]["predicted bytes"]
    assert 0.25 < ratio[0] < 0.32


@pytest.mark.parametrize("algorithm", [AllReduce(), ByteGrad()])
def test_one_worker_is_plain_torch(algorithm):
    one = train(StackedCommunicator(1), algorithm)
    model = make_model()
    optimizer = make_optimizer(model)
    quantised = 0.0
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, 0)
        optimizer.zero_grad()
        losses(model(x_b)[None], y_b[None]).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        quantised = max(quantised, (gradients.max() - gradients.min()).item() / 255)
        optimizer.step()
    # Two compressions of half a step each, every step; plain torch has none.
    bound = quantised * NUM_STEPS * LEARNING_RATE / (1 - MOMENTUM)
    atol = 1e-6 if isinstance(algorithm, AllReduce) else bound
    for name, expected in model.named_parameters():
        torch.testing.assert_close(
            one["module." + name].view(expected.shape), expected.detach(), rtol=0, atol=atol
        )


def test_all_reduce_equals_an_oracle_of_plain_torch(simulated):
    """N models in a loop, gradients averaged by hand."""
    models = [make_model() for _ in range(WORLD_SIZE)]
    optimizers = [make_optimizer(model) for model in models]
    for step in range(NUM_STEPS):
        for rank, model in enumerate(models):
            backward(model, step, rank)
        average_gradients_(models)
        for optimizer in optimizers:
            optimizer.step()
    for name, expected in models[0].named_parameters():
        ours = simulated["all_reduce"]["module." + name]
        torch.testing.assert_close(
            ours[0].view(expected.shape), expected.detach(), rtol=0, atol=1e-5
        )
    running_means = torch.stack([model[1].running_mean for model in models])
    ours = simulated["all_reduce"]["module.1.running_mean"]
    torch.testing.assert_close(ours[0], running_means.mean(0), rtol=0, atol=1e-5)
