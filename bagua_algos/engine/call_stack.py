"""The call stack of a thread, for the few facts that torch does not report, and what is refused by
them.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.optim import Optimizer

_HOOKED_STEP = Optimizer.profile_hook_step(lambda _: None).__code__
"""Of what torch puts around every optimizer's `step`, to run the hooks."""


def running(function: Callable[..., Any], around: FrameType | None = None) -> FrameType | None:
    """The innermost call of `function`, a plain Python one, that this thread is within; `around`
    this other call, if that is given.
    """
    frame = around or sys._getframe(1)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame


def is_within_another_backward() -> bool:
    """Whether the backward pass that runs was begun within another one, by an autograd function of
    Python. Gradients that such a function only accumulates are of the pass that runs, as FSDP2's.
    """
    inner = running(torch.autograd.backward)
    return inner is not None and running(BackwardCFunction.apply, inner) is not None


def _is_compiled() -> bool:
    """Whether the backward pass that runs is one that torch compiles (`compiled_autograd`)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")  # long to import
    return getattr(module, "in_compiled_autograd_region", False)


def refuse_reentrant() -> None:
    """Raise `ValueError` within the backward pass of an autograd function's own backward."""
    if is_within_another_backward():
        raise ValueError(
            "reentrant activation checkpointing, which calls backward() in the backward of an "
            "autograd function, is not supported: call torch.utils.checkpoint.checkpoint(..., "
            "use_reentrant=False), or take gradients there by torch.autograd.grad, and return them"
        )


def refuse_graph() -> None:
    """Raise `ValueError` in a backward pass that is compiled or makes a graph of gradients."""
    if _is_compiled():
        raise ValueError(
            "compiled autograd is not supported: switch torch._dynamo.config.compiled_autograd off"
        )
    if torch.is_grad_enabled():
        raise ValueError(
            "backward(create_graph=True) is not supported, because workers average gradients "
            "without their graph: take gradients of gradients from torch.autograd.grad(loss, "
            "parameters, create_graph=True), and call a plain backward() of the whole loss"
        )


def is_within_own_step(optimizer: Optimizer) -> bool:
    """Whether this step is part of another one of the same optimizer: where a class's `step` calls
    `super().step()`, torch runs the hooks for each of the two.
    """
    num_steps, frame = 0, sys._getframe()
    while frame is not None:
        num_steps += frame.f_code is _HOOKED_STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return num_steps > 1


def saving_by_torch() -> bool:
    """Whether a step of an optimizer is none: `torch.distributed.checkpoint` takes one by gradients
    and learning rates of zero, for an optimizer without a state to make it.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")  # long to import
    make_state = getattr(module, "_init_optim_state", None)
    return make_state is not None and running(make_state) is not None
