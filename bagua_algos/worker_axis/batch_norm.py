"""Batch normalization of stacked workers, by hand: one layer of the channels of all.

So does `torch.func.vmap`, but it scales and shifts in passes of their own, and backward in more.

Shapes: w workers held by this process, b examples of each, c channels.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn import functional

from bagua_algos.worker_axis.linear import in_front


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.batch_norm`; running statistics are changed in place.

    By hand on a CPU, within `vmap`, where everything is the workers' own, but not under autocast,
    where torch knows what to cast.
    """
    tensors = input, running_mean, running_var, weight, bias
    device = input.device.type
    is_plain = device == "cpu" and not torch.is_autocast_enabled(device) and input.dim() > 1
    if is_plain and all(is_batchedtensor(x) for x in tensors if x is not None):
        return _BatchNorm.apply(*tensors, training, momentum, eps)
    return functional.batch_norm(*tensors, training, momentum, eps)


class _BatchNorm(torch.autograd.Function):
    """Of one worker, for `vmap` to make it one of all."""

    @staticmethod
    def forward(x: Tensor, *others: Any) -> Tensor:
        raise AssertionError("called within vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: autograd sees torch's function."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[Tensor, int]:
        *tensors, training, momentum, eps = inputs
        x_wbc, mean_wc, var_wc, weight_wc, bias_wc = (
            None if x is None else in_front(x, dim, info.batch_size)
            for x, dim in zip(tensors, in_dims[: len(tensors)], strict=True)
        )
        assert x_wbc is not None
        x_bc = x_wbc.transpose(0, 1).flatten(1, 2)
        # Views, to be changed in place: torch refuses those of other tensors.
        mean_c, var_c = (None if x is None else x.view(-1) for x in (mean_wc, var_wc))
        weight_c, bias_c = (None if x is None else x.flatten() for x in (weight_wc, bias_wc))
        own = mean_c, var_c, weight_c, bias_c
        y_bc = functional.batch_norm(x_bc, *own, training, momentum, eps)
        return y_bc.unflatten(1, (info.batch_size, -1)), 1
