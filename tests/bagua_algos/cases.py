"""What real and simulated workers are compared in: functions of a communicator alone.

Each returns tensors whose first dimension is the worker axis, so that row r of a simulated run
stands beside the only row of real worker r.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bagua_algos import Algorithm, AllReduce
from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel, StackedModel
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

WORLD_SIZE = 4
NODES = {
    1: ((0,),),
    2: ((0,), (1,)),
    3: ((0, 2), (1,)),
    4: ((0, 1, 2), (3,)),
    8: ((0, 1, 2), (3, 4), (5,), (6, 7)),
}
"""Which of so many workers share a node: unequal where they can be."""

NUM_STEPS = 13
"""Adam's rows end their warm-up after ten."""
Tensors = dict[str, Tensor]


def make_model() -> nn.Module:
    """Sizes that divide by nothing, BatchNorm, several buckets of 4 kB."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(13, 37),
        nn.BatchNorm1d(37),
        nn.ReLU(),
        nn.Linear(37, 29),
        nn.ReLU(),
        nn.Linear(29, 7),
    )


@cache
def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Worker `rank`'s inputs [b, 13] and labels [b] of a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x_b = torch.randn(16, 13, generator=generator)
    return x_b, (x_b[:, :7] + 0.3 * torch.randn(16, 7, generator=generator)).argmax(1)


def on_worker_axis(model: nn.Module, communicator: Communicator) -> nn.Module:
    num_held = len(communicator.ranks)
    return SingleModel(model) if num_held == 1 else StackedModel(model, num_held)


def losses(outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
    return (
        F.cross_entropy(outputs_wbc.flatten(0, 1), y_wb.flatten(), reduction="sum") / y_wb.shape[1]
    )


def take_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, ranks: Sequence[int]
) -> None:
    """Of workers on the worker axis, each with its own batch, in the dtype of their weights."""
    batches = [batch(step, rank) for rank in ranks]
    x_wb, y_wb = (torch.stack(part) for part in zip(*batches, strict=True))
    optimizer.zero_grad()
    losses(model(x_wb.to(next(model.parameters()).dtype)), y_wb).backward()
    optimizer.step()


def backward(model: nn.Module, step: int, rank: int) -> None:
    """Leave the gradients of a worker's batch of a step in its own, ordinary model."""
    model.zero_grad()
    x_b, y_b = batch(step, rank)
    x_b = x_b.to(next(model.parameters()).dtype)
    losses(model(x_b)[None], y_b[None]).backward()


def average_gradients_(models: Sequence[nn.Module]) -> None:
    """Give all of these ordinary models the mean of their gradients."""
    for together in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(p.grad for p in together if p.grad is not None) / len(models)
        for p in together:
            p.grad = torch.clone(mean)


def train(
    communicator: Communicator,
    algorithm: Algorithm,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] = make_optimizer,
) -> Tensors:
    """The consensus' weights and buffers [w, ...] at the end, and the last step's gradients."""
    model = on_worker_axis(make_model(), communicator)
    optimizer = optimizer_of(model)
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=4096, timeout_s=60)
    assert len(engine.context.buckets) > 1
    for step in range(NUM_STEPS):
        take_step(model, optimizer, step, communicator.ranks)
    num_held = len(communicator.ranks)
    with engine.consensus():
        results = {
            name: value.detach().reshape(num_held, -1).clone()
            for name, value in [*model.named_parameters(), *model.named_buffers()]
        }
    gradients = [bucket.gradients[:, : bucket.numel].clone() for bucket in engine.context.buckets]
    engine.close()
    return results | {"gradients": torch.cat(gradients, 1)}


def collectives(communicator: Communicator, dtype: torch.dtype = torch.float32) -> Tensors:
    """Every primitive on numbers that tell where they came from."""
    world_size, ranks = communicator.world_size, torch.tensor(communicator.ranks)
    unit = torch.tensor(1 + 0.5j if dtype.is_complex else 1, dtype=dtype)
    rows = (ranks[:, None] * 100.0 + torch.arange(5)) * unit
    chunks = (ranks[:, None] * 100.0 + torch.arange(world_size))[..., None] + torch.zeros(3)
    chunks = chunks * unit
    mean, sent = rows.clone(), rows.clone()
    communicator.all_reduce_mean_(mean)
    communicator.broadcast_(sent, source=2)
    shift = [(rank + 1) % world_size for rank in range(world_size)]
    codes = chunks.real.to(torch.uint8)
    return {
        "all_reduce_mean_": mean,
        "broadcast_": sent,
        "all_to_all": communicator.all_to_all(chunks),
        "all_to_all of bytes": communicator.all_to_all(codes),
        "all_gather": communicator.all_gather(rows).clone(),
        "all_gather of bytes": communicator.all_gather(codes).clone(),
        "reduce_scatter_mean": communicator.reduce_scatter_mean(chunks),
        "exchange": communicator.exchange(rows, shift),
        "exchange with oneself": communicator.exchange(rows, list(range(world_size))),
    }


def accumulation(communicator: Communicator) -> Tensors:
    """Gradients after two micro-batches, the first inside no_sync, and a parameter that nothing
    uses.
    """
    model = on_worker_axis(
        nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(5, 1)}), communicator
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    used, idle = model.module["used"], model.module["idle"]
    engine = Engine(model, make_optimizer(model), AllReduce(), communicator, timeout_s=60)
    scale_w = torch.tensor(communicator.ranks).float() + 1
    for micro_batch in range(2):
        loss = (scale_w * (micro_batch + 1) * used.weight.reshape(len(scale_w), -1).sum(1)).sum()
        if micro_batch == 0:
            with engine.no_sync():
                loss.backward()
        else:
            loss.backward()
    engine.close()
    num_held = len(communicator.ranks)
    return {
        "used": used.weight.grad.reshape(num_held, -1),
        "idle": idle.weight.grad.reshape(num_held, -1),
    }


def row(name: str) -> Callable[[Communicator], Tensors]:
    """Training by one row of the suite over all algorithms."""
    return lambda communicator: train(
        communicator, ROWS[name](), OPTIMIZERS.get(name, make_optimizer)
    )


CASES: dict[str, Callable[[Communicator], Tensors]] = {
    "collectives": collectives,
    "collectives of float64": partial(collectives, dtype=torch.float64),
    "collectives of complex64": partial(collectives, dtype=torch.complex64),
    "accumulation": accumulation,
    **{name: row(name) for name in ROWS},
}
