"""A multilayer perceptron with BatchNorm; stacked workers are a few batched matrix products."""

import itertools
from collections.abc import Sequence

from torch import nn

from experiments.tasks.images import IMAGE_SIZE


class MLP(nn.Sequential):
    """Linear, BatchNorm and ReLU for each hidden width, then the classifier.

    Maps images [b, 1, 28, 28] to logits [b, num_classes]; 536,586 parameters by default. Runs
    under `torch.func.vmap` with stacked parameters and buffers, in training mode too.

    Raises ValueError if a width is not positive.
    """

    def __init__(self, *, hidden: Sequence[int] = (512, 256), num_classes: int = 10) -> None:
        if not hidden or min(*hidden, num_classes) < 1:
            raise ValueError(
                "MLP needs at least one hidden width, and widths and classes above zero, "
                f"but got hidden={list(hidden)}, num_classes={num_classes}."
            )
        widths = [IMAGE_SIZE * IMAGE_SIZE, *hidden]
        super().__init__(
            nn.Flatten(),
            *(_layer(n, m) for n, m in itertools.pairwise(widths)),
            nn.Linear(widths[-1], num_classes),
        )


def _layer(num_inputs: int, num_outputs: int) -> nn.Module:
    # BatchNorm subtracts the mean, so a bias before it would have no effect.
    return nn.Sequential(
        nn.Linear(num_inputs, num_outputs, bias=False), nn.BatchNorm1d(num_outputs), nn.ReLU()
    )
