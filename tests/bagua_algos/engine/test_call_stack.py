"""Which calls a thread is within."""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from bagua_algos.engine.call_stack import (
    is_within_another_backward,
    is_within_own_step,
    running,
    saving_by_torch,
)


def itself(depth=0):
    """The call of `itself` that it finds, at the bottom of so many of its own."""
    if depth:
        return itself(depth - 1)
    return running(itself)


def elsewhere():
    return running(itself)


def around():
    return elsewhere(), running(around)


def test_the_innermost_call_is_found_also_where_that_is_who_asks():
    frame = itself(2)
    assert frame is not None and frame.f_locals["depth"] == 0


def test_a_call_that_the_thread_is_not_within_is_none():
    assert elsewhere() is None
    of_another, own = around()
    assert of_another is None and own is not None and own.f_code is around.__code__


class Telling(torch.autograd.Function):
    """Tells in its backward, and in that of a pass that it begins, whether it is within another."""

    told: list[bool]

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Telling.told.append(is_within_another_backward())
        if ctx.depth:
            with torch.enable_grad():
                torch.autograd.backward(Telling.apply(torch.ones(1, requires_grad=True), 0))
        return gradient, None


def test_a_backward_pass_within_another_is_told_from_what_a_function_does_itself():
    Telling.told = []
    for depth in (0, 1):
        Telling.apply(torch.ones(1, requires_grad=True), depth).backward()
    assert Telling.told == [False, False, True]
    assert not is_within_another_backward()


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def test_a_step_that_its_own_class_calls_is_within_another():
    within = []
    for make in (torch.optim.SGD, Twice):
        optimizer = make(nn.Linear(2, 1).parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda own, *_: within.append(is_within_own_step(own)))
        optimizer.step()
    assert within == [False, False, True]


def test_only_a_step_by_which_torch_makes_a_state_to_save_is_none():
    model = nn.Linear(2, 1)
    optimizer, saving = torch.optim.Adam(model.parameters(), lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: saving.append(saving_by_torch()))
    get_state_dict(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert saving == [True, False]
