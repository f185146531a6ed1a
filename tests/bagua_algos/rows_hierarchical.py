"""Rows of the shared suite: the hierarchical form of every primitive."""

from collections.abc import Callable

import torch
from torch import nn

from bagua_algos import (
    Algorithm,
    AllReduce,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    QAdam,
)
from bagua_algos.communication.topology import Exponential
from bagua_algos.compressors import QSGD, SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from tests.bagua_algos.rows_local_and_adam import adam

ROWS: dict[str, Callable[[], Algorithm]] = {
    "all_reduce_hierarchical": lambda: AllReduce(hierarchical=True),
    "byte_grad_hierarchical": lambda: CompressedAllReduce(
        compressor=MinMaxUInt8(), hierarchical=True
    ),
    "qsgd_hierarchical": lambda: CompressedAllReduce(compressor=QSGD(), hierarchical=True),
    "ef_signsgd_hierarchical": lambda: CompressedAllReduce(
        compressor=SignScale(), error_feedback=True, hierarchical=True
    ),
    "power_sgd_hierarchical": lambda: PowerSGD(hierarchical=True),
    "qadam_hierarchical": lambda: QAdam(warmup_steps=10, hierarchical=True),
    "local_sgd_hierarchical": lambda: LocalSGD(interval=4, hierarchical=True),
    "decentralized_hierarchical": lambda: Decentralized(hierarchical=True),
    "decentralized_exponential_hierarchical": lambda: Decentralized(
        topology=Exponential(), hierarchical=True
    ),
    "low_precision_decentralized_hierarchical": lambda: LowPrecisionDecentralized(
        hierarchical=True
    ),
}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {"qadam_hierarchical": adam}
