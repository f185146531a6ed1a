"""Backward passes with and without `no_sync` in one step, where what was not sent is kept."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import AllReduce, TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.test_engine import engine_of, layers
from tests.bagua_algos.engine.test_script_order import (
    WITH_FEEDBACK,
    WITH_MOMENTUM,
    loss_of,
    name_of,
)


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_thrown_away_are_refused_also_before_a_pass_within_no_sync(
    algorithm, set_to_none
):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, algorithm)
    with engine.no_sync():
        loss_of(model).backward()
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    with pytest.raises(ValueError, match=r"^the gradients of the last backward pass were thrown"):
        for is_last in (False, True):
            with nullcontext() if is_last else engine.no_sync():
                loss_of(model).backward()


@pytest.mark.parametrize("algorithm", [*WITH_FEEDBACK, AllReduce()], ids=name_of)
def test_passes_with_and_without_no_sync_may_take_turns(algorithm):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, algorithm)
    for _ in range(2):
        optimizer.zero_grad()
        for number in range(4):
            with nullcontext() if number % 2 else engine.no_sync():
                loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("algorithm", [*WITH_FEEDBACK, AllReduce()], ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_stacked_workers_may_take_these_turns_too(algorithm, set_to_none):
    model = StackedModel(layers(3, 4, 5), num_workers=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    communicator = StackedCommunicator(3)
    bagua_algos.distribute(model, optimizer, algorithm, communicator=communicator)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        for is_local in (False, True, False):
            with model.no_sync() if is_local else nullcontext():
                model(torch.ones(3, 2, 3)).square().sum().backward()
        optimizer.step()
    if algorithm in WITH_FEEDBACK:
        model(torch.ones(3, 2, 3)).square().sum().backward()
        optimizer.zero_grad()
        with pytest.raises(ValueError, match=r"^the gradients of the last backward pass were thr"):
            model(torch.ones(3, 2, 3)).square().sum().backward()


@pytest.mark.parametrize("algorithm", [WITH_MOMENTUM, TopK(clip_norm=1.0)], ids=["dgc", "clip"])
@pytest.mark.parametrize("is_local_between", [True, False])
def test_what_takes_one_backward_pass_a_step_refuses_the_second(algorithm, is_local_between):
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, algorithm)
    loss_of(model).backward()
    if is_local_between:
        with engine.no_sync():
            loss_of(model).backward()
    with pytest.raises(ValueError, match=r"^TopK takes every backward pass for a step: let"):
        loss_of(model).backward()


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
def test_the_only_parameter_of_stacked_workers_accumulates(algorithm):
    model = StackedModel(nn.Linear(4, 1, bias=False), num_workers=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, algorithm, communicator=StackedCommunicator(3))
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.ones(3, 2, 4)).square().sum().backward()
        optimizer.step()
