"""What the scripts have in common: a model, its data, and a plain training to compare with."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bagua_algos
from bagua_algos import SGP, Algorithm, AllReduce, Decentralized, LocalSGD, QAdam
from bagua_algos.compressors import SignScale

NUM_STEPS = 6
Results = dict[str, Any]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


Model = TypeVar("Model", bound=nn.Module)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def batch(step: int, micro_batch: int = 0) -> tuple[Tensor, Tensor]:
    """This worker's inputs `[8, 6]` and labels `[8]`."""
    seed = 1000 * step + 10 * micro_batch + dist.get_rank()
    x_b = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    return x_b, x_b[:, :3].argmax(1)


def loss_of(model: nn.Module, step: int, micro_batch: int = 0) -> Tensor:
    x_b, y_b = batch(step, micro_batch)
    return F.cross_entropy(model(x_b), y_b)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(NUM_STEPS)
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    """All parameters, `[1, n]`."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])[None]


def ddp_weights(make: Callable[[], nn.Module] = make_model) -> Tensor:
    """The weights after the same training by DistributedDataParallel."""
    model = make()
    train(DistributedDataParallel(model), sgd(model))
    return flat(model)


def distributed(
    algorithm: Algorithm, make_optimizer: MakeOptimizer, model: Model
) -> tuple[Model, torch.optim.Optimizer]:
    return bagua_algos.distribute(model, make_optimizer(model), algorithm)


def all_reduced(
    model: Model, make_optimizer: MakeOptimizer = sgd
) -> tuple[Model, torch.optim.Optimizer]:
    return distributed(AllReduce(), make_optimizer, model)


ALGORITHMS: dict[str, tuple[Algorithm, MakeOptimizer]] = {
    "all_reduce": (AllReduce(), sgd),
    "qadam": (QAdam(warmup_steps=2), adam),
    "one_bit_adam": (
        QAdam(warmup_steps=2, compressor=SignScale(), error_feedback=True, precondition=True),
        adam,
    ),
    "decentralized": (Decentralized(), sgd),
    "local_sgd": (LocalSGD(interval=2), sgd),
    "sgp": (SGP(overlap=True), sgd),
}


def refusal(action: Callable[[], object]) -> str:
    """The sentence by which `action` is refused; empty where it is not."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""
