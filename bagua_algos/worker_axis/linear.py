"""Linear layers of stacked workers, by hand: no copy of their weights' gradients.

`torch.func.vmap` multiplies by the transpose of the weights, and gets the gradient of that.
Autograd then copies it into the order of the weights: a fifth of a small network's step. And where
it is known where gradients are to be, they are written there.

Shapes: w workers held by this process, b examples of each, i inputs and o outputs of a layer.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd.function import once_differentiable


class _Places(threading.local):
    """Where the gradients of weights are to be written, by the weights' `_key`."""

    def __init__(self) -> None:
        self.of_weights: dict[tuple[Any, ...], Tensor] = {}


_PLACES = _Places()


@contextmanager
def writing_gradients(weights: Sequence[Tensor], places: Sequence[Tensor]) -> Iterator[None]:
    """Within, in this thread, a backward pass of linear layers writes the gradients of `weights` to
    these places. Of layers that have one weight, the first: autograd adds the others' up elsewhere.
    """
    before = _PLACES.of_weights
    _PLACES.of_weights = dict(zip(map(_key, weights), places, strict=True))
    try:
        yield
    finally:
        _PLACES.of_weights = before


def is_by_hand(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether such a layer is multiplied by hand: on a CPU, but not under autocast, where torch
    knows what to cast.
    """
    device = input.device.type
    dims_fit = input.dim() > 1 and weight.dim() == 2
    is_of_workers = any(map(is_batchedtensor, (input, weight)))  # else vmap has nothing to do here
    is_plain = device == "cpu" and not torch.is_autocast_enabled(device)
    is_plain = is_plain and not weight.is_complex()  # whose gradient is of the conjugate
    return dims_fit and is_of_workers and is_plain


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`, within `vmap` alone."""
    return _Linear.apply(input, weight, bias)


class _Linear(torch.autograd.Function):
    """Of one worker, for `vmap` to make it one of all."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise AssertionError("called within vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: `_Stacked` is what autograd sees."""

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, int]:
        x_wb, weight_woi, bias_wo = (
            None if tensor is None else in_front(tensor, dim, info.batch_size)
            for tensor, dim in zip((x, weight, bias), in_dims, strict=True)
        )
        assert x_wb is not None
        y_wb = _Stacked.apply(x_wb.flatten(1, -2), weight_woi, bias_wo)
        return y_wb.unflatten(1, x_wb.shape[1:-1]), 0


def in_front(x: Tensor, dim: int | None, num_workers: int) -> Tensor:
    """`x[w, ...]` of what `vmap` has along `dim`, or of None, which all workers share."""
    return x.expand(num_workers, *x.shape) if dim is None else x.movedim(dim, 0)


class _Stacked(torch.autograd.Function):
    """`x[w, b, i]`, `weight[w, o, i]` and `bias[w, o]` -> `[w, b, o]`."""

    @staticmethod
    def forward(ctx: Any, x_wbi: Tensor, weight_woi: Tensor, bias_wo: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_wbi, weight_woi)
        if bias_wo is None:
            return x_wbi @ weight_woi.mT
        return torch.baddbmm(bias_wo.unsqueeze(1), x_wbi, weight_woi.mT)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient_wbo: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_wbi, weight_woi = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            gradient_wbo @ weight_woi if of_x else None,
            _of_weight(gradient_wbo, x_wbi, weight_woi) if of_weight else None,
            gradient_wbo.sum(1) if of_bias else None,
        )


def _of_weight(gradient_wbo: Tensor, x_wbi: Tensor, weight_woi: Tensor) -> Tensor:
    place = _PLACES.of_weights.pop(_key(weight_woi), None)
    return torch.bmm(gradient_wbo.mT, x_wbi, out=place)


def _key(weight: Tensor) -> tuple[Any, ...]:
    """Which weight this is: its transpose, or its real part, is another."""
    return weight.data_ptr(), weight.shape, weight.stride(), weight.dtype
