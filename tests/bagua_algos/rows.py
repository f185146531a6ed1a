"""One row an algorithm, or more: what the suite over all algorithms runs."""

import torch
from torch import nn

from bagua_algos import AllReduce, ByteGrad
from tests.bagua_algos import (
    rows_compression,
    rows_decentralized,
    rows_hierarchical,
    rows_local_and_adam,
)

ROWS = {
    "all_reduce": AllReduce,
    "byte_grad": ByteGrad,
    "byte_grad_with_error_feedback": lambda: ByteGrad(error_feedback=True),
    **rows_hierarchical.ROWS,
    **rows_compression.ROWS,
    **rows_compression.ROWS_WITHOUT_MOMENTUM,
    **rows_decentralized.ROWS,
    **rows_local_and_adam.ROWS,
}

LEARNING_RATE = 0.05
MOMENTUM = 0.9


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def without_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


OPTIMIZERS = {
    **dict.fromkeys(rows_compression.ROWS_WITHOUT_MOMENTUM, without_momentum),
    **rows_local_and_adam.OPTIMIZERS,
    **rows_hierarchical.OPTIMIZERS,
}
