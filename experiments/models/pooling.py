"""Max pooling of 2 x 2 that evaluates fast."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class HalvingMaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d(2)`: images [..., h, w] to [..., h // 2, w // 2].

    Where no gradient is asked for, the largest is found by `torch.maximum`: the same bits, and
    faster on a processor than torch's kernel, which also notes where each one stood.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """The largest of each 2 x 2 numbers; an odd row or column at the end is left out."""
        if torch.is_grad_enabled() or input.is_cuda:
            return functional.max_pool2d(input, 2)
        height, width = (size // 2 * 2 for size in input.shape[-2:])
        rows = torch.maximum(input[..., 0:height:2, :], input[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])
