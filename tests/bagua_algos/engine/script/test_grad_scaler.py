"""Overflows with a `GradScaler`: of one bucket of several, of another worker, and after parameters
have been laid out anew.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bagua_algos import Algorithm, AllReduce, AsyncModelAverage
from bagua_algos.algorithms.compressed_all_reduce import CompressedAllReduce
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors.cast import Cast
from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script.grad_scaler import ScaledGradients
from bagua_algos.worker_axis.models import StackedModel

SCALE = 2.0**8


class Pair(nn.Module):
    """Two weights, whose gradients are what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.first * x + self.second * y).sum()

    def gradients(self) -> list[float]:
        return [parameter.grad.item() for parameter in self.parameters()]


class WithAnother(LoopbackCommunicator):
    """One of two workers; of the other, all that is averaged is 1."""

    def __init__(self) -> None:
        super().__init__(2)

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        x_w.add_(1).div_(2)


def train(algorithm, workers=None) -> tuple[Pair, Engine, Callable[[float, float], None]]:
    """A model on one worker, each weight in a bucket of its own; and its backward pass."""
    model = Pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = workers or StackedCommunicator(1)
    engine = Engine(model, optimizer, algorithm, workers, bucket_bytes=1, grad_scaler=scaler)

    def backward(x: float, y: float) -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.tensor(x), torch.tensor(y))).backward()

    return model, engine, backward


@pytest.mark.parametrize("gradients", [(1.0, math.inf), (math.inf, 1.0)])
def test_an_overflow_in_one_bucket_is_one_in_all(gradients):
    model, engine, backward = train(AllReduce())
    assert len(engine.context.buckets) == 2
    backward(*gradients)
    assert model.gradients() == [math.inf, math.inf]
    engine.close()


def test_an_overflow_of_another_worker_is_one_here():
    model, engine, backward = train(Algorithm(), WithAnother())
    backward(1.0, 1.0)
    assert model.gradients() == [math.inf, math.inf]
    engine.close()


def test_an_asynchronous_worker_is_left_to_its_own_scaler():
    """Which finds an overflow where it is, and the gradients as it has scaled them."""
    model, engine, backward = train(AsyncModelAverage(interval_ms=1e9))
    for gradients in ((1.0, 2.0), (math.inf, 2.0)):
        backward(*gradients)
        assert model.gradients() == [SCALE * gradient for gradient in gradients]
    engine.close()


def test_gradients_in_other_buckets_are_unscaled_there():
    model, engine, backward = train(AllReduce())
    engine.relayout([(model.first, model.second)])
    backward(1.0, 2.0)
    assert model.gradients() == [SCALE, 2 * SCALE]
    backward(1.0, math.inf)
    assert model.gradients() == [math.inf, math.inf]
    engine.close()


@pytest.mark.parametrize("own", [0.0, 1.0])
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_workers_tell_each_other_of_overflows(own, others):
    """Of two: each has to find the other's, too."""
    parameter = nn.Parameter(torch.zeros(2))
    buckets = build_buckets([parameter], num_held=1, world_size=2, bucket_bytes=1)
    (gradient,) = buckets[0].gradient_views()
    gradient.copy_(torch.tensor([2 * SCALE, math.inf if own else 0.0]))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaled = ScaledGradients.of(scaler, buckets, torch.optim.SGD([parameter], lr=0.1))
    assert scaled is not None
    told = []

    def average_(flags_w: Tensor) -> None:
        told.append(flags_w.tolist())
        flags_w.add_(others).div_(2)

    assert scaled.unscale_(average_) == bool(own or others)
    assert told == [[[own]]]
    assert gradient.tolist() == ([math.inf] * 2 if own or others else [2.0, 0.0])


def test_a_code_that_overflows_costs_one_step():
    torch.manual_seed(0)
    model = StackedModel(nn.Linear(5, 5), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    codes = CompressedAllReduce(compressor=Cast(wire="fp16"))
    engine = Engine(model, optimizer, codes, StackedCommunicator(2), grad_scaler=scaler)
    [bucket] = engine.context.buckets
    assert bucket.gradients.shape[1] > bucket.numel  # what a code decodes to reaches the padding
    moved = []
    for size in (1.0, 1e6, 1.0, 1.0):
        before = bucket.weights.clone()
        optimizer.zero_grad()
        scaler.scale((model(torch.randn(2, 4, 5) * size)).mean((1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(bucket.weights, before))
    assert moved == [True, False, True, True]
    assert scaler.get_scale() == 8.0
