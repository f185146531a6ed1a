"""A model in units, its batches and optimizers: the same for sharded processes and for oracles.

Shapes: b examples of a process.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from bagua_algos import (
    SGP,
    Algorithm,
    AllReduce,
    ByteGrad,
    ChocoSGD,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    QAdam,
    TopK,
)
from bagua_algos.compressors import QSGD, Cast, MinMaxUInt8, SignScale
from bagua_algos.outer_optimizer import Nesterov, SlowMo
from tests.bagua_algos.rows import make_optimizer, without_momentum
from tests.bagua_algos.rows_local_and_adam import adam, adamw

NUM_REPLICAS = NUM_SHARDS = 2
NUM_STEPS = 7
UNITS = {"narrow": ("narrow",), "stem": ("stem",), "root": ("head", "wide", "mid")}
"""The layers of each unit, in the order of buckets."""
OWN_UNITS = ("narrow", "stem")
"""Those that are not the root's."""
APART = "stem"
"""The layer with a learning rate and a weight decay of its own."""

SHARDED_ROWS: dict[str, Callable[[], Algorithm]] = {
    "all_reduce": AllReduce,
    "all_reduce_bf16": lambda: AllReduce(wire="bf16"),
    "allreduce_fp8": lambda: CompressedAllReduce(compressor=Cast(wire="fp8_e4m3")),
    "byte_grad": ByteGrad,
    "byte_grad_hierarchical": lambda: CompressedAllReduce(
        compressor=MinMaxUInt8(), hierarchical=True
    ),
    "qsgd": lambda: CompressedAllReduce(compressor=QSGD()),
    "ef_signsgd": lambda: CompressedAllReduce(compressor=SignScale(), error_feedback=True),
    "top_k": lambda: TopK(ratio=0.05),
    "momentum_correction": lambda: TopK(ratio=0.05, momentum=0.9, warmup_steps=2),
    "decentralized": lambda: Decentralized(interval=2),
    "low_precision_decentralized": LowPrecisionDecentralized,
    "choco_sgd": ChocoSGD,
    "sgp": SGP,
    "sgp_overlapped": lambda: SGP(overlap=True),
    "local_sgd": lambda: LocalSGD(interval=3),
    "post_local_sgd": lambda: LocalSGD(interval=2, start_step=3),
    "slowmo": lambda: LocalSGD(interval=3, outer=SlowMo()),
    "diloco": lambda: LocalSGD(interval=3, outer=Nesterov()),
    "diloco_int8": lambda: LocalSGD(interval=3, outer=Nesterov(), compressor=MinMaxUInt8()),
    "qadam": lambda: QAdam(warmup_steps=3),
    "one_bit_adam": lambda: QAdam(warmup_steps=3, compressor=SignScale(), error_feedback=True),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum_correction": without_momentum,
    **dict.fromkeys(("diloco", "diloco_int8", "one_bit_adam"), adamw),
    "qadam": adam,
}
NODES = ((0,), (1,))


class Net(nn.Module):
    """Sizes that two processes cannot share out evenly; of `narrow` the second one has nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(13, 37), nn.Linear(29, 7)
        self.narrow, self.wide, self.mid = nn.Linear(37, 1), nn.Linear(1, 29), nn.Linear(37, 29)

    def forward(self, x_b: Tensor) -> Tensor:
        x_b = self.stem(x_b).relu()
        return self.head((self.wide(self.narrow(x_b)) + self.mid(x_b)).relu())


def batch(step: int, replica: int, shard: int) -> tuple[Tensor, Tensor]:
    """A process's inputs [b, 13] and labels [b]."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * replica + shard)
    x_b = torch.randn(16, 13, generator=generator)
    return x_b, (x_b[:, :7] + 0.3 * torch.randn(16, 7, generator=generator)).argmax(1)


def make_two_groups(name: str, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """A row's own optimizer over parameters, by their names."""
    together, apart = [], []
    for key, parameter in named:
        (apart if key.startswith(APART) else together).append(parameter)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(SimpleNamespace(parameters=lambda: together))
    lr = 0.5 * optimizer.param_groups[0]["lr"]
    optimizer.add_param_group({"params": apart, "lr": lr, "weight_decay": 0.05})
    return optimizer
