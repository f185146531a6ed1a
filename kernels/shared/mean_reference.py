"""The mean of decoded chunks in plain torch: the specification of its order of summation."""

import torch
from torch import Tensor


def mean_in_order(decoded: Tensor) -> Tensor:
    """float32 `[..., N, n]` -> `[..., n]`: ((d[0] + d[1]) + d[2]) ..., divided by N."""
    total = decoded[..., 0, :].clone()
    for i in range(1, decoded.shape[-2]):
        total += decoded[..., i, :]
    return divide(total, decoded.shape[-2])


def divide(x: Tensor, divisor: float) -> Tensor:
    """x / divisor, rounded once: on a GPU torch divides by a number through its reciprocal."""
    return x / torch.full((), divisor, dtype=x.dtype, device=x.device)
