"""Optimizers beside the distributed one."""

import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from bagua_algos import AllReduce, CompressedAllReduce, LocalSGD, PowerSGD, TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import QSGD
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script import other_optimizers
from tests.bagua_algos.engine.script.test_attached import backward, give_own_gradients
from tests.bagua_algos.engine.script.test_changes import sgd
from tests.bagua_algos.engine.test_engine import engine_of, layers

CODED = CompressedAllReduce(compressor=QSGD(bits=4))


def optimizers_of(model: nn.Module) -> tuple[Engine, torch.optim.SGD, torch.optim.SGD]:
    """Of all-reduce, with an optimizer of the first layer, and another one of the second."""
    optimizer, other = (sgd(*layer.parameters()) for layer in model)
    return Engine(model, optimizer, AllReduce(), StackedCommunicator(1)), optimizer, other


def test_another_optimizer_takes_no_gradients_of_one_worker():
    model = layers(3, 4, 5)
    engine, optimizer, other = optimizers_of(model)
    for _ in range(2):
        with engine.no_sync():
            backward(model)
        before = model[1].weight.detach().clone()
        for one in (other, optimizer):
            with pytest.raises(ValueError, match=r"all accumulated within no_sync\(\)"):
                one.step()
        assert torch.equal(model[1].weight, before)
        backward(model)
        other.step()
        optimizer.step()
        assert not torch.equal(model[1].weight, before)
        model.zero_grad()
    with engine.no_sync():
        backward(model)
    model.zero_grad()
    other.step()  # without a gradient
    engine.close()


@pytest.mark.parametrize("num_passes", [0, 1])
def test_another_optimizer_takes_no_gradients_that_no_backward_pass_has_made(num_passes):
    model = layers(3, 4, 5)
    engine, _, other = optimizers_of(model)
    for _ in range(num_passes):
        backward(model)
        model[1].weight.grad = model[1].weight.grad.clamp(-0.1, 0.1)
        other.step()
    give_own_gradients(model)
    with pytest.raises(ValueError, match=r"'1.weight' .* gradient that no backward pass of the"):
        other.step()
    model.zero_grad(set_to_none=False)
    other.step()
    backward(model)
    other.step()
    other.step()
    engine.close()


def test_another_optimizer_trains_nothing_that_was_frozen_before():
    """It may have it from the beginning, frozen."""
    model = layers(3, 4, 5)
    model[0].requires_grad_(False)
    other, optimizer = (sgd(*layer.parameters()) for layer in model)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    for _ in range(2):
        other.step()
    model[0].requires_grad_(True)
    model[1].requires_grad_(False)
    backward(model)
    with pytest.raises(ValueError, match=r"'0.weight' .* another .*: release\(\) the"):
        other.step()
    model[0].requires_grad_(False)
    other.step()
    engine.close()


def test_another_optimizer_takes_its_step_by_a_closure():
    model = layers(3, 4, 5)
    engine, _, other = optimizers_of(model)
    with engine.no_sync():
        backward(model)
    other.step(lambda: backward(model))
    with engine.no_sync(), pytest.raises(ValueError, match=r"all accumulated within no_sync\(\)"):
        other.step(lambda: backward(model))
    engine.close()


class Around(torch.optim.Optimizer):
    """Steps another optimizer, by a method of its own, as sharpness-aware minimization does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([p for group in inner.param_groups for p in group["params"]], {})
        self.inner = inner

    def second_step(self) -> None:
        self.inner.step()


STEPS_COUNT = [PowerSGD(rank=1, warmup_steps=2), TopK(ratio=0.1, warmup_steps=2), CODED]


@pytest.mark.parametrize("algorithm", STEPS_COUNT, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("way", ["another", "within", "in turn", "of layers"])
def test_the_steps_of_another_optimizer_count(algorithm, way):
    """Warm-ups end by them, and random numbers are those of the next step: weights are those that
    the distributed optimizer would have made.
    """
    plain, model = layers(3, 4, 5), layers(3, 4, 5)
    optimizer, other = sgd(*model.parameters()), sgd(*model.parameters())
    around = Around(other)
    first, last = (sgd(*layer.parameters()) for layer in model)
    distributed, even, odd = {
        "another": (optimizer, [other.step], [other.step]),
        "within": (around, [around.second_step], [around.second_step]),
        "in turn": (optimizer, [optimizer.step], [other.step]),
        "of layers": (first, [first.step, last.step], [last.step, first.step]),
    }[way]
    alone, plain_optimizer = engine_of(plain, algorithm)
    engine = Engine(model, distributed, algorithm, StackedCommunicator(1))
    for number in range(6):
        for one, steps in ((plain, [plain_optimizer.step]), (model, odd if number % 2 else even)):
            one.zero_grad()
            backward(one)
            for step in steps:
                step()
        assert engine.context.step == number + 1
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    engine.close()
    alone.close()


def test_no_step_is_counted_that_overflows_or_has_no_gradient_or_saves():
    model = layers(3, 4, 5)
    optimizer, other = (torch.optim.SGD(p.parameters(), lr=0.1, fused=True) for p in model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1), grad_scaler=scaler)
    for factor, num_steps in ((float("inf"), 0), (1.0, 1)):
        model.zero_grad()
        scaler.scale(factor * model(torch.ones(2, 3)).sum()).backward()
        scaler.step(other)
        scaler.update()
        assert engine.context.step == num_steps
    backward(model)
    model.zero_grad()
    get_optimizer_state_dict(model[1], other)
    other.step()
    assert engine.context.step == 1
    engine.close()


def test_a_state_may_be_made_for_another_optimizer_that_has_none():
    model = layers(3, 4, 5)
    engine, _, other = optimizers_of(model)
    with engine.no_sync():
        backward(model)
    model.zero_grad()
    get_optimizer_state_dict(model[1], other)
    engine.close()


def test_every_optimizer_is_heard_of_before_its_step_and_after_it(monkeypatch):
    """As by the first model that a process distributes."""
    other_optimizers._hook_all_optimizers()  # those of this process stay as they are
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(sys.modules["torch.optim.optimizer"], hooks, OrderedDict())
    other_optimizers._hook_all_optimizers.cache_clear()
    model = layers(3, 4)
    engine, _ = engine_of(model, TopK(ratio=0.1))
    for _ in range(2):  # what another optimizer has used is not thrown away
        backward(model)
        sgd(*model.parameters()).step()
        model.zero_grad()
    engine.close()
    engine, _ = engine_of(model, LocalSGD())
    with pytest.raises(ValueError, match=r"another optimizer is about to change"):
        sgd(*model.parameters()).step()
    engine.close()
