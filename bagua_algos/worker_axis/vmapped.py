"""Stacked workers as one computation, by `torch.func.vmap`."""

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.buffers import call_with, lent, take_back
from bagua_algos.worker_axis.by_hand import LayersByHand
from bagua_algos.worker_axis.inputs import Inputs


def by_vmap(module: nn.Module, x_wb: Inputs) -> Tensor:
    """The outputs `[w, b, ...]` of a module whose parameters and buffers are `[w, ...]`. A buffer
    that it gives another tensor has the values of that one.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    given, one = lent(buffers), partial(call_with, module)
    by_hand = nullcontext() if torch.compiler.is_compiling() else LayersByHand()
    with by_hand:
        y_wb, others = torch.func.vmap(one, randomness="different")(parameters, given, x_wb)
    take_back(buffers, given, others)
    return y_wb
