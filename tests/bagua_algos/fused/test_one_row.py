"""The optimizer of workers that agree steps for one, and the others are copies."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from bagua_algos import AllReduce
from bagua_algos.autotune.make_engine import make_engine
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.fused import equal_rows
from bagua_algos.fused.fuse import unfuse_optimizer
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.cases import make_model
from tests.bagua_algos.fused.settings import SETTINGS
from tests.bagua_algos.fused.test_stacked import WORKERS, assert_close, train


class Scale(nn.Module):
    """By a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def hung(setting: str, *, agree: bool, bucket_bytes: int = 4096) -> Engine:
    cls, options = SETTINGS[setting]
    model = StackedModel(nn.Sequential(make_model(), Scale()).double(), WORKERS)
    optimizer = cls(model.parameters(), **options)
    how = partial(make_engine, agree=True) if agree else Engine
    workers = StackedCommunicator(WORKERS)
    return how(model, optimizer, AllReduce(), workers, bucket_bytes=bucket_bytes)


def elements_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The states that are as large as their parameters."""
    return [
        value
        for parameter, state in optimizer.state.items()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]


@pytest.mark.parametrize("setting", SETTINGS)
def test_all_workers_step_as_each_by_itself(setting):
    one, other = (hung(setting, agree=agree) for agree in (True, False))
    for engine in (one, other):
        train(engine, 0, 12)
    assert_close(one.context.optimizer, other.context.optimizer)
    for bucket in one.context.buckets:
        assert torch.equal(bucket.weights, bucket.weights[:1].expand_as(bucket.weights))
        assert not bucket.weights[:, bucket.numel :].any()
    states = elements_of(one.context.optimizer)
    assert bool(states) == (setting != "sgd")
    assert all(x.stride(0) == 0 for x in states), "of one row's memory"
    assert len(states) == len(elements_of(other.context.optimizer))


@pytest.mark.parametrize("setting", ["sgd momentum", "adam"])
def test_a_parameter_without_a_gradient_stands_still(setting):
    one, other = (hung(setting, agree=agree) for agree in (True, False))
    for engine in (one, other):
        idle = next(engine.model.parameters())
        for step in range(6):
            hook = engine.context.optimizer.register_step_pre_hook(
                lambda *_, idle=idle, step=step: setattr(
                    idle, "grad", None if step in (0, 3) else idle.grad
                )
            )
            train(engine, step, step + 1)
            hook.remove()
    assert_close(one.context.optimizer, other.context.optimizer)


@pytest.mark.parametrize("setting", ["sgd momentum", "adam"])
@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 4096])
def test_a_state_can_be_loaded_by_workers_that_agree_and_by_others(setting, agree, bucket_bytes):
    """Also where each parameter has a bucket of its own."""
    one, same = (hung(setting, agree=True, bucket_bytes=bucket_bytes) for _ in range(2))
    train(one, 0, 5)
    train(same, 0, 5)
    other = hung(setting, agree=agree, bucket_bytes=bucket_bytes)
    other.model.load_state_dict(one.model.state_dict())
    other.context.optimizer.load_state_dict(copy.deepcopy(one.context.optimizer.state_dict()))
    for engine in (same, other):
        train(engine, 5, 10)
    assert_close(other.context.optimizer, same.context.optimizer)


def test_states_that_differ_stay_apart():
    """Such as those of a checkpoint of workers that did not agree."""
    one, other = (hung("sgd momentum", agree=agree) for agree in (True, False))
    for engine in (one, other):
        train(engine, 0, 2)
        for state in engine.context.optimizer.state.values():
            rows = state["momentum_buffer"].clone()
            rows[1] *= 2
            state["momentum_buffer"] = rows
        engine.context.optimizer.step()
    assert_close(one.context.optimizer, other.context.optimizer)
    weights = next(one.model.parameters())
    assert not torch.equal(weights[0], weights[1])


def test_padding_stays_zero_whatever_its_gradients_are():
    """A code may leave anything there."""
    engine = hung("sgd momentum", agree=True)
    buckets = engine.context.buckets
    assert any(bucket.numel < bucket.weights.shape[1] for bucket in buckets)

    def fill(*_: object) -> None:
        for bucket in buckets:
            bucket.gradients[:, bucket.numel :] = 1

    engine.context.optimizer.register_step_pre_hook(fill)
    train(engine, 0, 2)
    assert not any(bucket.weights[:, bucket.numel :].any() for bucket in buckets)


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_gradient_that_differs_is_refused(is_elsewhere):
    engine = hung("sgd momentum", agree=True)
    train(engine, 0, 1)

    def spoil(optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if is_elsewhere:
                    parameter.grad = parameter.grad.clone()
                parameter.grad[1] += 1

    engine.context.optimizer.register_step_pre_hook(spoil)
    with pytest.raises(ValueError, match=r"gradients differ.*gradients_agree = False"):
        train(engine, 1, 2)


def test_an_optimizer_that_is_plain_again_goes_on():
    one, other = (hung("adam", agree=agree) for agree in (True, False))
    for engine in (one, other):
        train(engine, 0, 4)
        engine.close()
        unfuse_optimizer(engine.context.optimizer)
        assert all(x.stride(0) != 0 for x in elements_of(engine.context.optimizer))
        for parameter in engine.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        engine.context.optimizer.step()
    assert_close(one.context.optimizer, other.context.optimizer)


@pytest.mark.parametrize(("place", "numel"), [(0, 15), (3, 15), (4, 15), (14, 15), (15, 16)])
@pytest.mark.parametrize("num_before", [1, 30])
def test_a_difference_that_comes_later_is_found_within_a_round(
    place, numel, num_before, monkeypatch
):
    monkeypatch.setattr(equal_rows, "LOOKED_AT", 4)
    rows, gradients_wn = equal_rows.EqualRows(), torch.full((WORKERS, numel), torch.nan)
    for _ in range(num_before):
        rows.look_at(gradients_wn)
    gradients_wn[2, place] = 1
    with pytest.raises(ValueError, match="differ"):
        for _ in range(4):
            rows.look_at(gradients_wn)
