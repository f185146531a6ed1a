"""Stacked workers as one computation, by `torch.func.vmap`."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.inputs import Inputs
from bagua_algos.worker_axis.linear import LinearByHand


def by_vmap(module: nn.Module, x_wb: Inputs) -> Tensor:
    """The outputs `[w, b, ...]` of a module whose parameters and buffers are `[w, ...]`."""

    def one(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x_b: Inputs) -> Tensor:
        own = (dict(parameters), dict(buffers))
        if isinstance(x_b, Tensor):
            return torch.func.functional_call(module, own, (x_b,))
        return torch.func.functional_call(module, own, (), dict(x_b))

    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    by_hand = nullcontext() if torch.compiler.is_compiling() else LinearByHand()
    with by_hand:
        return torch.func.vmap(one, randomness="different")(parameters, buffers, x_wb)
