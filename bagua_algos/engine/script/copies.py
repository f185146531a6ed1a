"""What `distribute` leaves in a model's attributes, so that copies and files have none of it.

`copy.deepcopy(model)`, `torch.optim.swa_utils.AveragedModel` and `torch.save(model)` copy a
module's attributes with all that they refer to: the engine, its threads and its connections would
be among them. What is kept here copies itself as plain torch's own, and loads where this package is
not installed.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from bagua_algos.engine.call_stack import running

FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
LOAD_HOOKS = ("_load_state_dict_pre_hooks",)


class OwnHook:
    """One that no copy of a module has."""


class ForwardHook(OwnHook):
    """Calls `act(module)` around a forward in training, but where the model is being compiled: a
    graph has no place for it, and the first gradient tells the engine as well.
    """

    def __init__(self, act: Callable[[nn.Module], None]) -> None:
        self._act = act

    def __call__(self, module: nn.Module, *inputs_and_outputs: object) -> None:
        """A forward begins or ends; leaves its arguments and its outputs as they are."""
        if not torch.compiler.is_compiling() and module.training and torch.is_grad_enabled():
            self._act(module)

    @property
    def __name__(self) -> str:
        """As a function has it; `ValueError` where torch.jit.script would compile that function."""
        if running(torch.jit.script):
            raise ValueError(
                "torch.jit.script cannot compile a distributed model: give it "
                "copy.deepcopy(model), which is plain"
            )
        return type(self).__qualname__


class NoSync:
    """`model.no_sync()`, as `DistributedDataParallel` has it; a copy's does nothing."""

    def __init__(self, no_sync: Callable[[], AbstractContextManager[None]]) -> None:
        self._no_sync = no_sync

    def __call__(self) -> AbstractContextManager[None]:
        """Within, gradients only accumulate locally."""
        return self._no_sync()

    def __reduce__(self) -> tuple:
        return partial, (nullcontext,)


class Hooks(OrderedDict):
    """The hooks of a module; a copy of them leaves ours out."""

    def __reduce__(self) -> tuple:
        others = [(key, hook) for key, hook in self.items() if not _is_ours(hook)]
        return OrderedDict, (others,)


def leave_out_of_copies(model: nn.Module, *, load_hooks: bool) -> None:
    """From here on no copy of `model` has a hook of ours: around forward passes, and, where there
    are `load_hooks`, of any part. Call it before any is registered.
    """
    of_parts = LOAD_HOOKS if load_hooks else ()
    for module in model.modules():
        for name in (*FORWARD_HOOKS, *of_parts) if module is model else of_parts:
            # Not by setattr: a compiled model would set it on the model within.
            attributes: dict[str, Any] = vars(module)
            if not isinstance(attributes[name], Hooks):
                attributes[name] = Hooks(attributes[name])


def _is_ours(hook: object) -> bool:
    return isinstance(getattr(hook, "hook", hook), OwnHook)  # or torch's around it
