"""A small convolutional network with BatchNorm, light enough for several workers on one CPU."""

import itertools
from collections.abc import Sequence

from torch import nn

from experiments.models.pooling import PooledConv2d
from experiments.tasks.images import IMAGE_SIZE


class CNN(nn.Sequential):
    """A 3x3 convolution that ends at half the size for each of `channels`, then two linear layers.

    Maps images [b, 1, 28, 28] to logits [b, num_classes]; 409,338 parameters by default. Runs
    under `torch.func.vmap` with stacked parameters and buffers, in training mode too.

    Raises ValueError if a width is not positive or if nothing is left of the image.
    """

    def __init__(
        self, *, channels: Sequence[int] = (16, 32), hidden: int = 256, num_classes: int = 10
    ) -> None:
        size = IMAGE_SIZE >> len(channels)
        if not channels or size == 0:
            raise ValueError(
                f"CNN halves a {IMAGE_SIZE} pixel image once for each of its channels, so give "
                f"1 to 4 of them, but got channels={list(channels)}."
            )
        if min(*channels, hidden, num_classes) < 1:
            raise ValueError(
                f"CNN needs widths and classes above zero, but got channels={list(channels)}, "
                f"hidden={hidden}, num_classes={num_classes}."
            )
        super().__init__(
            *(_stage(n, m) for n, m in itertools.pairwise([1, *channels])),
            nn.Flatten(),
            nn.Linear(channels[-1] * size * size, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )


def _stage(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        PooledConv2d(num_inputs, num_outputs),  # Before what then works on a quarter.
        nn.BatchNorm2d(num_outputs),
        nn.ReLU(),
    )
