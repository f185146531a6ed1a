"""torch's own checkpoints: `get_state_dict` steps by zeros where an optimizer has no state."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from bagua_algos import Algorithm, AllReduce, Decentralized, LocalSGD, QAdam
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.engine.test_engine import layers

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x_b = torch.randn(2, 3, generator=torch.Generator().manual_seed(step))
        model(x_b).square().sum().backward()
        optimizer.step()


def started(algorithm: Algorithm, make: MakeOptimizer = adamw):
    model = layers(3, 4, 5)
    optimizer = make(model)
    return model, optimizer, Engine(model, optimizer, algorithm, StackedCommunicator(1))


@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize(
    "algorithm",
    [AllReduce(), LocalSGD(interval=2), Decentralized()],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_a_checkpoint_before_the_first_step_is_no_step(algorithm, make):
    model, optimizer, engine = started(algorithm, make)
    plain = copy.deepcopy(model)
    plain_optimizer = make(plain)
    for own, own_optimizer in ((model, optimizer), (plain, plain_optimizer)):
        get_state_dict(own, own_optimizer)
        assert own_optimizer.param_groups[0]["lr"] == 0.1
    assert engine.context.step == 0
    for own, own_optimizer in ((model, optimizer), (plain, plain_optimizer)):
        train(own, own_optimizer, range(3))
    assert engine.context.step == 3
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    engine.close()


def test_checkpoints_between_steps_of_a_stateless_optimizer_are_no_steps():
    model, optimizer, engine = started(LocalSGD(interval=2), sgd)
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        optimizer.zero_grad()
        get_state_dict(model, optimizer)
    assert engine.context.step == 4
    engine.close()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_checkpoints_of_moments_that_the_algorithm_has_are_those(num_steps):
    """QAdam before its switch and after."""
    algorithm = QAdam(warmup_steps=2)
    (model, optimizer, engine), (other, other_optimizer, other_engine) = (
        started(algorithm) for _ in range(2)
    )
    for own, own_optimizer in ((model, optimizer), (other, other_optimizer)):
        train(own, own_optimizer, range(num_steps))
        own_optimizer.zero_grad()
    expected = optimizer.state_dict()["state"]
    weights, saved = get_state_dict(model, optimizer)
    names = {p: name for name, p in model.named_parameters()}
    for index, parameter in enumerate(model.parameters()):
        found = saved["state"][names[parameter]]
        assert all(torch.equal(found[name], x) for name, x in expected[index].items())
    assert engine.context.step == num_steps
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=saved)
    for own, own_optimizer in ((model, optimizer), (other, other_optimizer)):
        train(own, own_optimizer, range(num_steps, 6))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for own in (engine, other_engine):
        own.close()
