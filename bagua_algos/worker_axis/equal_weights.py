"""Layers of stacked workers whose weights are equal: one layer computes the examples of all.

Where an algorithm keeps workers equal, every row of a stacked weight is the same. A layer of row 0
then reads one weight in place of w, and needs no convolution of w groups, which is slow. Gradients
of weights stay apart, a row a worker. Whatever else a model has is computed by `vmap` as ever.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bagua_algos.worker_axis.equal_layers import conv2d, fits_conv2d, linear
from bagua_algos.worker_axis.linear import LinearByHand, fits


class EqualWeights(LinearByHand):
    """Within, `vmap` computes linear layers and convolutions of images by the weights of worker 0,
    on a CPU and not under autocast.

    Args:
        parameters: `[w, ...]`, of equal rows.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self._equal = frozenset(parameter.data_ptr() for parameter in parameters)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """As torch calls it."""
        kwargs = kwargs or {}
        if func is functional.linear and fits(*args, **kwargs):
            return linear(self._equal, *args, **kwargs)
        if func is torch.conv2d and fits_conv2d(*args, **kwargs):
            return conv2d(self._equal, *args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)
