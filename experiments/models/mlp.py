"""A multilayer perceptron; stacked workers are a few batched matrix products."""

import itertools
from collections.abc import Callable, Sequence

from torch import nn

from experiments.tasks.images import IMAGE_SIZE

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
"""Over what each normalizes: the examples of a worker's batch, or the features of an example."""


class MLP(nn.Sequential):
    """Linear, normalization and ReLU for each hidden width, then the classifier.

    Maps images [b, 1, 28, 28] to logits [b, num_classes]; 536,586 parameters by default. Runs
    under `torch.func.vmap` with stacked parameters and buffers, in training mode too.

    Args:
        hidden: the widths of the hidden layers.
        num_classes: how many logits there are.
        norm: a key of `NORMS`. Where workers have examples of few classes, "batch" fails: the
            statistics of a worker's batches are not those of all examples (arXiv 1910.00189).

    Raises ValueError if a width is not positive or the norm is unknown.
    """

    def __init__(
        self, *, hidden: Sequence[int] = (512, 256), num_classes: int = 10, norm: str = "batch"
    ) -> None:
        if not hidden or min(*hidden, num_classes) < 1:
            raise ValueError(
                "MLP needs at least one hidden width, and widths and classes above zero, "
                f"but got hidden={list(hidden)}, num_classes={num_classes}."
            )
        if norm not in NORMS:
            raise ValueError(f"MLP has norm={' or '.join(NORMS)}, but got {norm!r}.")
        widths = [IMAGE_SIZE * IMAGE_SIZE, *hidden]
        super().__init__(
            nn.Flatten(),
            *(_layer(n, m, NORMS[norm]) for n, m in itertools.pairwise(widths)),
            nn.Linear(widths[-1], num_classes),
        )


def _layer(num_inputs: int, num_outputs: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    # Both norms have a bias of their own.
    return nn.Sequential(
        nn.Linear(num_inputs, num_outputs, bias=False), norm(num_outputs), nn.ReLU()
    )
