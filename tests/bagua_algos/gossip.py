"""What the tests of decentralized algorithms share: a quadratic whose workers have optima of their
own, and models in a loop, both without any code of an algorithm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import Exchange, Mixing, Topology
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import (
    backward,
    make_model,
    make_optimizer,
    on_worker_axis,
    take_step,
)
from tests.bagua_algos.recorder import Recorder

DIMENSION = 37
NUM_STEPS = 12


@dataclass(frozen=True, kw_only=True)
class Star(Topology):
    """Worker 0 keeps half of its mass and spreads the rest; the others give half of theirs to it:
    columns sum to 1 and rows do not.
    """

    is_static = True
    is_doubly_stochastic = False

    def mixing(self, step: int, world_size: int) -> Mixing:
        exchanges = []
        for shift in range(1, world_size):
            peers = tuple((rank + shift) % world_size for rank in range(world_size))
            weights = [0.0] * world_size
            weights[peers[0]] = 0.5 / (world_size - 1)
            weights[0] = 0.5
            exchanges.append(Exchange(peers=peers, weights=tuple(weights)))
        return Mixing(self_weights=(0.5,) * world_size, exchanges=tuple(exchanges))


def train(algorithm: Algorithm, world_size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """All weights `[N, elements]` of the model of `cases` after some steps.

    In float64 it can be held to an oracle closely: in float32 another order of sums now and then
    moves an activation to the other side of ReLU's kink.
    """
    communicator = StackedCommunicator(world_size)
    model = on_worker_axis(make_model().to(dtype), communicator)
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=4096, timeout_s=60)
    for step in range(NUM_STEPS):
        take_step(model, optimizer, step, communicator.ranks)
    engine.close()
    return torch.cat([p.detach().reshape(world_size, -1) for p in model.parameters()], 1)


class Oracle:
    """N ordinary models with their optimizers, in a loop; weights are vectors."""

    def __init__(self, world_size: int, dtype: torch.dtype = torch.float64) -> None:
        self.models = [make_model().to(dtype) for _ in range(world_size)]
        self.optimizers = [make_optimizer(model) for model in self.models]

    @property
    def weights(self) -> Tensor:
        vectors = [parameters_to_vector(model.parameters()) for model in self.models]
        return torch.stack(vectors).detach()

    @weights.setter
    def weights(self, x_wn: Tensor) -> None:
        for model, x_n in zip(self.models, x_wn, strict=True):
            vector_to_parameters(x_n.clone(), model.parameters())

    def backward(self, step: int) -> None:
        for rank, model in enumerate(self.models):
            backward(model, step, rank)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def minmax_uint8(z_wn: Tensor) -> Tensor:
    """What MinMaxUInt8 makes of each row."""
    scale = 255 / (z_wn.amax(1, keepdim=True) - z_wn.amin(1, keepdim=True) + 1e-7)
    upper = (z_wn.amax(1, keepdim=True) * scale).round()
    levels = (z_wn * scale).round().minimum(upper).maximum(upper - 255)
    return levels / scale


def assert_equal_but_for_ties(ours: Tensor, expected: Tensor, learning_rate: float) -> None:
    """Another order of sums can round a tie otherwise: by a level of what changes in a step, and
    seldom.
    """
    error = (ours - expected).abs()
    c_wn = optima(ours.shape[1])
    assert error.max() < learning_rate * (c_wn.max() - c_wn.min()) / 255
    assert (error > 1e-5).float().mean() < 0.1


def optima(world_size: int) -> Tensor:
    """Where each worker's quadratic has its minimum, `[N, DIMENSION]`."""
    return torch.randn(world_size, DIMENSION, generator=torch.Generator().manual_seed(7))


def descend(
    algorithm: Algorithm,
    world_size: int,
    *,
    learning_rate: float | Callable[[int], float] = 0.1,
    num_steps: int = NUM_STEPS,
    micro_batches: int = 1,
    recorder: Recorder | None = None,
) -> tuple[Tensor, Engine]:
    """Every worker i minimises |x - optimum_i|^2 / 2 from x = 0; returns all x after each step,
    `[steps, N, DIMENSION]`, and the engine.
    """
    communicator = StackedCommunicator(world_size)
    model = on_worker_axis(nn.Linear(1, DIMENSION, bias=False), communicator)
    (parameter,) = model.parameters()
    with torch.no_grad():
        parameter.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, communicator, timeout_s=60)
    communicator.observer = recorder
    trajectory, c_wn = [], optima(world_size)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step) if callable(learning_rate) else learning_rate
        optimizer.zero_grad()
        with engine.no_sync():
            for _ in range(micro_batches - 1):
                (_loss(model, c_wn) / micro_batches).backward()
        (_loss(model, c_wn) / micro_batches).backward()
        optimizer.step()
        trajectory.append(parameter.detach().reshape(world_size, DIMENSION).clone())
    engine.close()
    return torch.stack(trajectory), engine


def _loss(model: nn.Module, c_wn: Tensor) -> Tensor:
    x_wn = model(torch.ones(len(c_wn), 1, 1)).squeeze(1)
    return (x_wn - c_wn).square().sum() / 2


def spread(x_wn: Tensor) -> float:
    """Root mean square distance of the workers from their mean."""
    return (x_wn - x_wn.mean(0)).square().sum(1).mean().sqrt().item()


def follows_sgd_on_the_mean_gradient(trajectory: Tensor, learning_rate: float) -> bool:
    """For these quadratics the mean gradient depends on the mean of the weights alone."""
    centre = optima(trajectory.shape[1]).mean(0)
    mean = torch.zeros(DIMENSION)
    for x_wn in trajectory:
        mean = mean - learning_rate * (mean - centre)
        if not torch.allclose(x_wn.mean(0), mean, rtol=0, atol=2e-6):
            return False
    return True
