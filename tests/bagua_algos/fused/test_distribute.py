"""`distribute` fuses an optimizer in its buckets, without a word and without another bit."""

import sys
from types import MethodType

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import AllReduce
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.fused.fuse import is_fused
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos import cases
from tests.bagua_algos.cases import NODES, batch, losses, make_model
from tests.bagua_algos.fused.settings import assert_same
from tests.bagua_algos.fused.test_fuse import num_strips
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_STEPS = 10
STEADY = [name for name, make in ROWS.items() if not make().depends_on_timing]


class Own(torch.optim.SGD):
    """Of a script: it may do what no trial shows, so it is fused where it is asked for."""


def train(name: str, num_steps: int = NUM_STEPS) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One of 4 workers, alone; the model is distributed still."""
    model = make_model()
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    communicator = LoopbackCommunicator(4, nodes=NODES[4])
    bagua_algos.distribute(model, optimizer, ROWS[name](), communicator, bucket_bytes=4096)
    for step in range(num_steps):
        x_b, y_b = batch(step, 0)
        optimizer.zero_grad()
        losses(model(x_b)[None], y_b[None]).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", STEADY)
def test_every_algorithm_trains_to_the_same_bits(name, monkeypatch):
    model, optimizer = train(name)
    assert is_fused(optimizer)
    monkeypatch.setattr(
        sys.modules["bagua_algos.autotune.make_engine"], "fuse_in", lambda *_, **__: False
    )
    other, plain = train(name)
    assert not is_fused(plain)
    assert_same(optimizer, plain)
    for own in (model, other):
        bagua_algos.release(own)
    assert not is_fused(optimizer)
    assert_same(optimizer, plain)


def test_a_strip_is_a_bucket_and_released_it_ends():
    model, optimizer = train("all_reduce")
    assert num_strips(optimizer) == 2, "of three buckets, one has a single weight"
    bagua_algos.release(model)
    assert "step" not in vars(optimizer)


def test_fused_after_distribute_it_takes_the_same_steps_in_the_buckets():
    results = []
    for fuses in (True, False):
        model = make_model()
        optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
        bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
        addresses = [p.data_ptr() for p in model.parameters()]
        if fuses:
            bagua_algos.fuse_optimizer(optimizer)
        for step in range(4):
            x_b, y_b = batch(step, 0)
            optimizer.zero_grad()
            losses(model(x_b)[None], y_b[None]).backward()
            optimizer.step()
        assert [p.data_ptr() for p in model.parameters()] == addresses
        bagua_algos.release(model)
        assert is_fused(optimizer) == fuses, "as the script has asked for"
        results.append(optimizer)
    assert_same(*results)


def test_what_a_script_has_fused_stays_fused():
    model = make_model()
    optimizer = bagua_algos.fuse_optimizer(make_optimizer(model))
    bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
    losses(model(batch(0, 0)[0])[None], batch(0, 0)[1][None]).backward()
    optimizer.step()
    bagua_algos.release(model)
    assert is_fused(optimizer)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x_b, y_b = batch(0, 0)
    optimizer.zero_grad()
    losses(model(x_b)[None], y_b[None]).backward()
    optimizer.step()


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_a_step_that_a_script_has_put_on_the_optimizer_is_taken(is_scheduled):
    model = make_model()
    optimizer, calls = make_optimizer(model), []
    before = optimizer.step

    def counted(self: torch.optim.Optimizer, closure=None):
        calls.append(self)
        return before(closure)

    optimizer.step = MethodType(counted, optimizer)
    if is_scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for number in (1, 2):
        bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
        assert not is_fused(optimizer)
        take_step(model, optimizer)
        assert calls == [optimizer] * number
        bagua_algos.release(model)
    with pytest.raises(ValueError, match="its step was replaced by another"):
        bagua_algos.fuse_optimizer(optimizer)


def test_a_step_that_is_put_around_the_fused_one_stays():
    model = make_model()
    optimizer, calls = make_optimizer(model), []
    bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
    fused = optimizer.step
    optimizer.step = lambda closure=None: (calls.append(closure), fused(closure))
    take_step(model, optimizer)
    bagua_algos.release(model)
    bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
    assert not is_fused(optimizer)
    take_step(model, optimizer)
    assert len(calls) == 2
    bagua_algos.release(model)


@pytest.mark.parametrize("num_schedules", [0, 1, 2])
def test_what_schedules_have_put_on_the_optimizer_is_fused(num_schedules):
    model = make_model()
    optimizer = make_optimizer(model)
    optimizer.step = optimizer.step  # the class's own, as some wrappers put it back
    for _ in range(num_schedules):
        torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(2):
        bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
        assert is_fused(optimizer)
        take_step(model, optimizer)
        bagua_algos.release(model)
        assert not is_fused(optimizer)


@pytest.mark.parametrize("cls", [torch.optim.Adafactor, torch.optim.LBFGS, Own])
def test_what_cannot_be_fused_is_distributed_as_it_is(cls):
    model = make_model()
    optimizer = cls(model.parameters())
    bagua_algos.distribute(model, optimizer, AllReduce(), LoopbackCommunicator(4))
    assert not is_fused(optimizer)
    bagua_algos.release(model)


def test_stacked_workers_are_fused_and_released_no_longer():
    model = StackedModel(make_model(), 2)
    optimizer = make_optimizer(model)
    bagua_algos.distribute(model, optimizer, AllReduce(), StackedCommunicator(2))
    assert is_fused(optimizer)
    cases.take_step(model, optimizer, 0, range(2))
    assert num_strips(optimizer) == 1, "of the rows of both"
    bagua_algos.release(model)
    assert not is_fused(optimizer)
