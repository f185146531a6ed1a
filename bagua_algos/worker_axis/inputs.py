"""A model's inputs: one tensor, or a dictionary of them, as transformers' batches are.

A dictionary's entries are the model's keyword arguments. All have the same leading dimensions, such
as `[w, b, ...]`: w workers held by this process, b examples of each.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

Inputs = Tensor | Mapping[str, Tensor]


def each(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """`function` of the tensor, or of every tensor under its name."""
    if isinstance(x, Tensor):
        return function(x)
    return {name: function(part) for name, part in x.items()}


def any_of(x: Inputs) -> Tensor:
    """One of the tensors, for what all have in common: leading dimensions and the device."""
    return x if isinstance(x, Tensor) else next(iter(x.values()))


def call(model: nn.Module, x_b: Inputs) -> Tensor:
    """What `model` makes of a batch `[b, ...]`."""
    return model(x_b) if isinstance(x_b, Tensor) else model(**x_b)


def parts(x: Inputs, size: int) -> list[Inputs]:
    """`x` cut along its first dimension into parts of `size`; the last may be smaller."""
    starts = range(0, len(any_of(x)), size)
    return [each(lambda part, at=start: part[at : at + size], x) for start in starts]
