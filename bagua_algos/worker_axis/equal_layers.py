"""Linear layers and convolutions of stacked workers by one weight, whose gradient is each worker's.

Shapes: w workers held by this process, b examples of each; i inputs and o outputs of a layer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bagua_algos.worker_axis.linear import in_front, stacked_linear

Addresses = frozenset[int]
"""Of the stacked parameters, whose rows are equal. Another weight, such as one that is made of the
inputs, has rows that may differ.
"""
Pair = tuple[int, int]


def linear(equal: Addresses, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, within `vmap`."""
    return _Linear.apply(equal, input, weight, bias)


class _Linear(torch.autograd.Function):
    """Of one worker, for `vmap` to make it one of all."""

    @staticmethod
    def forward(equal: Addresses, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise AssertionError("called within vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: `_LinearOfAll` is what autograd sees."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        equal: Addresses,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, int]:
        x_wb = in_front(x, in_dims[1], info.batch_size)
        weight_woi = in_front(weight, in_dims[2], info.batch_size)
        bias_wo = None if bias is None else in_front(bias, in_dims[3], info.batch_size)
        if weight.data_ptr() not in equal:
            return stacked_linear(x_wb, weight_woi, bias_wo), 0
        y_wb = _LinearOfAll.apply(x_wb.flatten(1, -2), weight_woi).unflatten(1, x_wb.shape[1:-1])
        if bias_wo is not None:
            y_wb = y_wb + bias_wo.view(len(bias_wo), *[1] * (y_wb.dim() - 2), -1)
        return y_wb, 0


class _LinearOfAll(torch.autograd.Function):
    """`x[w, b, i]` and `weight[w, o, i]`, whose rows are equal -> `[w, b, o]`."""

    @staticmethod
    def forward(ctx: Any, x_wbi: Tensor, weight_woi: Tensor) -> Tensor:
        ctx.save_for_backward(x_wbi, weight_woi)
        return _flat(torch.matmul, x_wbi, weight_woi[0].mT)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient_wbo: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        x_wbi, weight_woi = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return (
            _flat(torch.matmul, gradient_wbo, weight_woi[0]) if of_x else None,
            gradient_wbo.mT @ x_wbi if of_weight else None,
        )


def _flat(function: Callable[..., Tensor], x_wb: Tensor, *others: Any) -> Tensor:
    """`function` of the examples of all workers, `[w, b, ...]` before and after it."""
    return function(x_wb.flatten(0, 1), *others).unflatten(0, x_wb.shape[:2])


def fits_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> bool:
    """Whether this is a convolution of images on a CPU, and not under autocast."""
    device = input.device.type
    is_plain = input.dim() == 4 and not isinstance(padding, str)
    return device == "cpu" and is_plain and not torch.is_autocast_enabled(device)


def conv2d(
    equal: Addresses,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """As torch's, within `vmap`."""
    return _Conv2d.apply(equal, input, weight, bias, (stride, padding, dilation, groups))


_Options = tuple[int | Pair, int | Pair, int | Pair, int]
"""Stride, padding, dilation, groups."""


class _Conv2d(torch.autograd.Function):
    """Of one worker, for `vmap` to make it one of all."""

    @staticmethod
    def forward(
        equal: Addresses, x: Tensor, weight: Tensor, bias: Tensor | None, options: _Options
    ) -> Tensor:
        raise AssertionError("called within vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: `_Conv2dOfAll` is what autograd sees."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        equal: Addresses,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        options: _Options,
    ) -> tuple[Tensor, int]:
        x_wb = in_front(x, in_dims[1], info.batch_size)
        weight_w = in_front(weight, in_dims[2], info.batch_size)
        if weight.data_ptr() in equal:
            y_wb = _Conv2dOfAll.apply(x_wb, weight_w, options)
        else:
            rows = zip(x_wb, weight_w, strict=True)
            y_wb = torch.stack([functional.conv2d(x, own, None, *options) for x, own in rows])
        if bias is not None:
            bias_wo = in_front(bias, in_dims[3], info.batch_size)
            y_wb = y_wb + bias_wo[:, None, :, None, None]
        return y_wb, 0


class _Conv2dOfAll(torch.autograd.Function):
    """Images `x[w, b, ...]` and `weight[w, o, ...]`, whose rows are equal -> `[w, b, o, ...]`."""

    @staticmethod
    def forward(ctx: Any, x_wb: Tensor, weight_w: Tensor, options: _Options) -> Tensor:
        ctx.save_for_backward(x_wb, weight_w)
        ctx.options = options
        return _flat(functional.conv2d, x_wb, weight_w[0], None, *options)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient_wb: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        x_wb, weight_w = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        gradient_x_wb = gradient_weight_w = None
        if of_x:
            all_b = gradient_wb.flatten(0, 1), x_wb.flatten(0, 1)
            gradient_x_b, _, _ = _backward(*all_b, weight_w[0], ctx.options, of=0)
            gradient_x_wb = gradient_x_b.unflatten(0, x_wb.shape[:2])
        if of_weight:
            gradient_weight_w = torch.empty_like(weight_w)
            for worker, own in enumerate(zip(gradient_wb, x_wb, strict=True)):
                _, gradient_weight_w[worker], _ = _backward(*own, weight_w[0], ctx.options, of=1)
        return gradient_x_wb, gradient_weight_w, None


def _backward(
    gradient_b: Tensor, x_b: Tensor, weight: Tensor, options: _Options, *, of: int
) -> tuple[Any, Any, Any]:
    """The gradients of `x_b`, of `weight` and of a bias, of which one is asked for."""
    stride, padding, dilation = map(_pair, options[:3])
    return torch.ops.aten.convolution_backward(
        *(gradient_b, x_b, weight, None, stride, padding, dilation, False, (0, 0), options[3]),
        [number == of for number in range(3)],
    )


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value
