"""The call stack of a thread, for the few facts that torch does not report."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def running(function: Callable[..., Any]) -> FrameType | None:
    """The innermost call of `function`, a plain Python one, that this thread is within."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame


def saving_by_torch() -> bool:
    """Whether a step of an optimizer is none: `torch.distributed.checkpoint` takes one by gradients
    and learning rates of zero, for an optimizer without a state to make it.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")  # long to import
    make_state = getattr(module, "_init_optim_state", None)
    return make_state is not None and running(make_state) is not None
