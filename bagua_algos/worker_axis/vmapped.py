"""Stacked workers as one computation, by `torch.func.vmap`."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.equal_weights import EqualWeights
from bagua_algos.worker_axis.inputs import Inputs
from bagua_algos.worker_axis.linear import LinearByHand


def by_vmap(module: nn.Module, x_wb: Inputs, *, are_equal: bool = False) -> Tensor:
    """The outputs `[w, b, ...]` of a module whose parameters and buffers are `[w, ...]`; the rows
    of each parameter are equal if `are_equal`.
    """

    def one(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x_b: Inputs) -> Tensor:
        own = (dict(parameters), dict(buffers))
        if isinstance(x_b, Tensor):
            return torch.func.functional_call(module, own, (x_b,))
        return torch.func.functional_call(module, own, (), dict(x_b))

    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    by_hand = EqualWeights(parameters.values()) if are_equal else LinearByHand()
    with nullcontext() if torch.compiler.is_compiling() else by_hand:
        return torch.func.vmap(one, randomness="different")(parameters, buffers, x_wb)
