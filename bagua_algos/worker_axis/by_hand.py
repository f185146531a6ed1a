"""Layers of stacked workers that are computed by hand: linear ones, batch normalization, and
embeddings with padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bagua_algos.worker_axis.batch_norm import batch_norm
from bagua_algos.worker_axis.linear import is_by_hand, linear


class LayersByHand(TorchFunctionMode):
    """Within, `vmap` computes linear layers and batch normalization by hand, where it can be, and
    gives the padding row of an embedding no gradient.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """As torch calls it."""
        kwargs = kwargs or {}
        if func is functional.linear and is_by_hand(*args, **kwargs):
            return linear(*args, **kwargs)
        if func is functional.batch_norm:
            return batch_norm(*args, **kwargs)
        if func is functional.embedding:
            return _embedding(*args, **kwargs)
        return func(*args, **kwargs)


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """As `torch.nn.functional.embedding`. `vmap` makes one table of all workers' rows, and leaves
    out the gradient of the padding row of the first worker alone.
    """
    if padding_idx is None or not -len(weight) <= padding_idx < len(weight):  # torch says what fits
        return functional.embedding(input, weight, padding_idx, *args, **kwargs)
    rows = functional.embedding(input, weight, None, *args, **kwargs)
    is_padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    return rows.detach().where(is_padding, rows)
