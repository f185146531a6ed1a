"""For algorithms that change only how gradients are averaged: plain torch on one side, ours on the
other.

Gradients are `[N, n]`: all parameters of a worker one after the other, the last parameter first,
as they lie in a single bucket.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Context
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import backward, make_model, on_worker_axis, take_step
from tests.bagua_algos.recorder import Recorder

NUM_STEPS = 20
ONE_BUCKET = 1 << 20
NUM_PARAMETERS = sum(p.numel() for p in make_model().parameters())
SHAPES = [p.shape for p in reversed(list(make_model().parameters()))]


def sgd(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def train(
    world_size: int,
    algorithm: Algorithm,
    *,
    momentum: float = 0.9,
    num_steps: int = NUM_STEPS,
    bucket_bytes: int = ONE_BUCKET,
    observer: Recorder | None = None,
    prepare: Callable[[Context], None] = lambda context: None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weights `[N, n]` after `num_steps` steps of `algorithm` on simulated workers."""
    communicator = StackedCommunicator(world_size, observer)
    model = on_worker_axis(make_model().to(dtype), communicator)
    optimizer = sgd(model, momentum)
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=bucket_bytes)
    prepare(engine.context)
    if observer is not None:
        observer.operations.clear()  # the broadcast of the first weights
    for step in range(num_steps):
        take_step(model, optimizer, step, communicator.ranks)
    weights = [b.weights[:, : b.numel].detach().clone() for b in engine.context.buckets]
    engine.close()
    return torch.cat(weights, dim=1)


def oracle(
    world_size: int,
    average: Callable[[int, Tensor], Tensor],
    *,
    momentum: float = 0.9,
    num_steps: int = NUM_STEPS,
) -> Tensor:
    """Weights `[n]` after as many steps in which `average(step, gradients[N, n])` is the gradient
    of all.
    """
    models = [make_model() for _ in range(world_size)]
    optimizers = [sgd(model, momentum) for model in models]
    for step in range(num_steps):
        for rank, model in enumerate(models):
            backward(model, step, rank)
        mean = average(step, torch.stack([_flat(m, lambda p: p.grad) for m in models]))
        for model, optimizer in zip(models, optimizers, strict=True):
            parameters = reversed(list(model.parameters()))
            parts = mean.split([shape.numel() for shape in SHAPES])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view(parameter.shape).clone()
            optimizer.step()
    return _flat(models[0], lambda p: p.detach())


def _flat(model: nn.Module, what: Callable[[nn.Parameter], Tensor]) -> Tensor:
    return torch.cat([what(p).flatten() for p in reversed(list(model.parameters()))])


class Given(nn.Module):
    """Parameters of `make_model`'s shapes, whose gradients are the input `x[1, n]` to the bit."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros(shape) for shape in reversed(SHAPES)])

    def forward(self, x_1n: Tensor) -> Tensor:
        parts = [part.flatten() for part in reversed(list(self.parts))]
        return (x_1n[0] * torch.cat(parts)).sum().view(1)


def averages(algorithm: Algorithm, gradients: Tensor) -> Tensor:
    """What `algorithm` makes of `gradients[steps, N, n]`, of the same shape: no model's rounding
    can flip a sign here.
    """
    world_size, results = gradients.shape[1], []
    communicator = StackedCommunicator(world_size)
    model = on_worker_axis(Given(), communicator)
    optimizer = sgd(model, momentum=0)
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=ONE_BUCKET)
    [bucket] = engine.context.buckets
    for x_wn in gradients:
        optimizer.zero_grad()
        model(x_wn.unsqueeze(1)).sum().backward()
        results.append(bucket.gradients[:, : bucket.numel].clone())
        optimizer.step()
    engine.close()
    return torch.stack(results)


def given_gradients(world_size: int, num_steps: int = NUM_STEPS) -> Tensor:
    """`[steps, N, n]`: noise around a constant, and zeros everywhere in some elements."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(NUM_PARAMETERS, generator=generator)
    noise = torch.randn(num_steps, world_size, NUM_PARAMETERS, generator=generator)
    gradients = mean + noise
    gradients[..., 100:300] = 0
    return gradients


class Quadratic(nn.Module):
    """x[b, 1] -> x * sum (weight - 3)^2: every worker pulls to 3, by its own batch's scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(20, 30))

    def forward(self, x: Tensor) -> Tensor:
        return x.mean() * (self.weight - 3).square().sum().view(1)


def distance_on_a_quadratic(
    algorithm: Algorithm, *, lr: float, num_steps: int, world_size: int = 4
) -> float:
    """How far the weights of `Quadratic` are from its minimum at the end, over how far they were
    at the start; workers' gradients differ by up to a factor of 3.
    """
    communicator = StackedCommunicator(world_size)
    model = on_worker_axis(Quadratic(), communicator)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    engine = Engine(model, optimizer, algorithm, communicator)
    weight = model.module.weight
    start = (weight.detach() - 3).norm().item()
    x_wb = 1 + torch.linspace(-0.5, 0.5, world_size).view(world_size, 1, 1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(x_wb).sum().backward()
        optimizer.step()
    engine.close()
    return (weight.detach() - 3).norm().item() / start
