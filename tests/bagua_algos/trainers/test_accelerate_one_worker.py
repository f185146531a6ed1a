"""Accelerate with RelaxedAccelerator, as one worker finds it in its own process."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import AllReduce, LocalSGD
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import Regression, Spare, error_of

pytestmark = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="the extra accelerate is not installed"
)


@pytest.fixture
def relaxed(launched):
    """Makes accelerators."""
    from accelerate.state import AcceleratorState

    from bagua_algos.trainers.accelerate import RelaxedAccelerator

    yield partial(RelaxedAccelerator, cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def accelerator(relaxed):
    accelerator = relaxed(LocalSGD(interval=2))
    yield accelerator
    accelerator.free_memory()


def prepared(accelerator, model: nn.Module):
    return accelerator.prepare(model, plain_loop.make_sgd(model))


def train(accelerator, model, optimizer) -> None:
    for batch in plain_loop.batches(plain_loop.examples(0)):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def test_a_state_stays_as_it_was_while_training_goes_on(accelerator):
    """Also where there is no other worker, so that the consensus is no copy of the weights."""
    model, optimizer = prepared(accelerator, Regression())
    state, before = accelerator.get_state_dict(model), plain_loop.weights(model)
    train(accelerator, model, optimizer)
    assert all(torch.equal(state[name], weights) for name, weights in before.items())
    assert not all(torch.equal(own, before[name]) for name, own in model.named_parameters())


def test_a_state_of_another_model_needs_no_other_worker(accelerator, monkeypatch):
    """The main process may save a teacher by itself, also one that is wrapped."""
    prepared(accelerator, Regression())
    teacher = nn.Linear(2, 2)
    with monkeypatch.context() as nobody_else:
        nobody_else.delattr(bagua_algos, "consensus")
        states = [accelerator.get_state_dict(m) for m in (teacher, nn.DataParallel(teacher))]
    for state in states:
        assert state["weight"].equal(teacher.weight)


def test_what_is_at_its_end_may_end_again_and_trains_no_more(accelerator):
    model, optimizer = prepared(accelerator, Regression())
    train(accelerator, model, optimizer)
    accelerator.free_memory()
    accelerator.free_memory()
    assert "has to be given the model and its optimizer" in error_of(
        lambda: train(accelerator, model, optimizer)
    )
    again, optimizer = prepared(accelerator, Regression())
    assert bagua_algos.is_distributed(again) and not bagua_algos.is_distributed(model)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_a_layer_that_nobody_uses_has_a_gradient_of_zero_unless_such_are_looked_for(
    relaxed, options
):
    accelerator, model = relaxed(AllReduce(), **options), Spare()
    prepared(accelerator, model)
    accelerator.backward(model(**next(plain_loop.batches(plain_loop.examples(0))))["loss"])
    gradient = model.spare.weight.grad
    assert gradient is None if options else gradient.eq(0).all()
    accelerator.free_memory()
