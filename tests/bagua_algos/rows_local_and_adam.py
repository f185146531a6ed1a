"""Rows of the shared suite: local SGD's family and Adam's. `OPTIMIZERS` has what a row needs in
place of the suite's own optimizer.
"""

from collections.abc import Callable

import torch
from torch import nn

from bagua_algos import Algorithm
from bagua_algos.algorithms.local_sgd import LocalSGD
from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.compressors import SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.outer_optimizer import Nesterov, SlowMo

ROWS: dict[str, Callable[[], Algorithm]] = {
    "local_sgd": lambda: LocalSGD(interval=4),
    "post_local_sgd": lambda: LocalSGD(interval=4, start_step=7),
    "slowmo": lambda: LocalSGD(interval=4, outer=SlowMo()),
    "diloco": lambda: LocalSGD(interval=5, outer=Nesterov()),
    "diloco_int8": lambda: LocalSGD(interval=5, outer=Nesterov(), compressor=MinMaxUInt8()),
    "qadam": lambda: QAdam(warmup_steps=10),
    "one_bit_adam": lambda: QAdam(warmup_steps=10, compressor=SignScale(), error_feedback=True),
    "one_bit_adam_preconditioned": lambda: QAdam(
        warmup_steps=10, compressor=SignScale(), error_feedback=True, precondition=True
    ),
}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """A large eps: what is rounding in a gradient stays small in Adam's step."""
    return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """As `adam`, with decoupled weight decay."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3, weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "diloco": adamw,
    "diloco_int8": adamw,
    "qadam": adam,
    "one_bit_adam": adamw,
    "one_bit_adam_preconditioned": adamw,
}
