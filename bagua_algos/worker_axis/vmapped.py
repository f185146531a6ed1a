"""Stacked workers as one computation, by `torch.func.vmap`."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.inputs import Inputs
from bagua_algos.worker_axis.linear import LinearByHand


def by_vmap(module: nn.Module, x_wb: Inputs) -> Tensor:
    """The outputs `[w, b, ...]` of a module whose parameters and buffers are `[w, ...]`. A buffer
    that it gives another tensor has the values of that one.
    """

    def one(
        parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x_b: Inputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        own = {**parameters, **buffers}  # what the module puts there, functional_call leaves there
        args, kwargs = ((x_b,), {}) if isinstance(x_b, Tensor) else ((), dict(x_b))
        y_b = torch.func.functional_call(module, own, args, kwargs)
        return y_b, {name: own[name] for name, x in buffers.items() if own[name] is not x}

    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    by_hand = nullcontext() if torch.compiler.is_compiling() else LinearByHand()
    with by_hand:
        y_wb, others = torch.func.vmap(one, randomness="different")(parameters, buffers, x_wb)
    for name, x_w in others.items():
        buffers[name].copy_(x_w.detach())
    return y_wb
