"""What the scripts have in common: a model, its data, and a plain training to compare with."""

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bagua_algos

NUM_STEPS = 6


def make_model() -> nn.Module:
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
    algorithm: bagua_algos.Algorithm | None = None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    model: nn.Module | None = None,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_model() if model is None else model
    algorithm = bagua_algos.AllReduce() if algorithm is None else algorithm
    return bagua_algos.distribute(model, make_optimizer(model), algorithm)


def refusal(action: Callable[[], object]) -> str:
    """The sentence by which `action` is refused; empty where it is not."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def plain_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)
