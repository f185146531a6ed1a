"""The model to evaluate where workers should be equal, and one is not."""

import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce, LocalSGD
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.consensus import differing
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.recorder import Recorder

ONE_BYTE = 1  # every parameter becomes a bucket of its own


@pytest.fixture
def weights():
    """Those of three equal workers, in two buckets, behind their engine."""
    model = StackedModel(nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)), 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(3), bucket_bytes=ONE_BYTE)
    assert len(engine.context.buckets) == 2
    yield engine, [layer.weight for layer in model.module]
    engine.close()


def shares(buckets, workers):
    found_w = differing(buckets, workers, lambda what, job: job())
    return found_w[:, 0].tolist()


def share(engine):
    return shares(engine.context.buckets, engine.context.communicator)


def test_a_worker_whose_one_bucket_differs_is_seen_by_all(weights):
    engine, (_, second) = weights
    assert share(engine) == [0, 0, 0]
    with torch.no_grad():
        second[1, 0, 0] += 1e-6
    assert share(engine) == [pytest.approx(1 / 3)] * 3


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_number_that_differs_is_seen_beside_real_ones(dtype):
    real, turned = (nn.Parameter(torch.ones(3, 2, dtype=d)) for d in (torch.float32, dtype))
    buckets = build_buckets([real, turned], num_held=3, world_size=3, bucket_bytes=ONE_BYTE)
    assert shares(buckets, StackedCommunicator(3)) == [0, 0, 0]
    with torch.no_grad():
        turned[2, 1] += 1e-3j
    assert shares(buckets, StackedCommunicator(3)) == [pytest.approx(1 / 3)] * 3


def test_workers_that_should_be_equal_and_are_not_are_told_of_and_averaged(weights):
    engine, (first, _) = weights
    with engine.consensus() as spread:
        assert spread == 0.0
    with torch.no_grad():
        first[0] += 3.0
    # The mean is 3 in the first layer and 2 in the second: two elements each.
    norm = math.sqrt(2 * 3.0**2 + 2 * 2.0**2)
    expected = math.sqrt(2 * (2.0**2 + 1 + 1) / 3) / norm
    said = f"the workers' weights differ by {expected:.1g} of their norm, and AllReduce keeps"
    with pytest.warns(UserWarning, match=said), engine.consensus() as spread:
        assert spread == pytest.approx(expected)
        assert first.eq(3.0).all()
    assert first[:, 0, 0].tolist() == [5.0, 2.0, 2.0]


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2)])
def test_what_is_averaged_travels_by_the_averager_that_is_given(algorithm):
    heard, others = Recorder(), Recorder()
    model = StackedModel(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(3, heard))
    heard.operations.clear()
    with engine.consensus(StackedCommunicator(3, others)):
        pass
    assert others.messages and not heard.messages
    others.operations.clear()
    with engine.consensus():
        pass
    assert heard.messages and not others.messages
    engine.close()


@pytest.mark.parametrize(
    ("workers", "value"), [(LoopbackCommunicator(1), 2.0), (StackedCommunicator(1), 0.0)]
)
def test_weights_of_one_worker_and_weights_of_zero_have_no_spread(workers, value):
    """Where an algorithm need not keep them equal, so that it is looked for."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, LocalSGD(interval=9), workers)
    with engine.consensus() as spread:
        assert spread == 0.0 and model.weight.eq(value).all()
    engine.close()


def test_weights_that_need_no_gradient_for_a_while_are_no_frozen_ones():
    model = StackedModel(nn.Linear(2, 1, bias=False), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, LocalSGD(interval=9), StackedCommunicator(3))
    means = torch.tensor([1.0, 4.0, 7.0])
    with torch.no_grad():
        model.module.weight.copy_(means[:, None, None].expand_as(model.module.weight))
    model.requires_grad_(False)  # as around an evaluation
    with engine.consensus() as spread:
        assert spread > 0.5 and model.module.weight.eq(4.0).all()
    model.requires_grad_(True)
    assert torch.equal(model.module.weight[:, 0, 0], means)
    engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2)])
def test_an_evaluation_in_inference_mode_is_one(algorithm):
    """Lanes, which are in no such mode, average what is made there; and training goes on."""
    means = torch.tensor([1.0, 4.0, 7.0])
    model = StackedModel(nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1)), 3)
    layer, norm = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(3), bucket_bytes=ONE_BYTE)
    with torch.no_grad():
        layer.weight.copy_(means[:, None, None].expand_as(layer.weight))
    norm.running_mean.copy_(means[:, None])
    told = partial(pytest.warns, UserWarning) if algorithm.workers_agree else nullcontext
    with torch.inference_mode(), told():
        engine.pause()
        with engine.consensus() as spread:
            assert spread > 0 and layer.weight.eq(4.0).all() and norm.running_mean.eq(4.0).all()
            assert torch.is_inference_mode_enabled()
    assert torch.equal(layer.weight[:, 0, 0], means)
    model(torch.randn(3, 5, 2)).sum().backward()
    optimizer.step()
    with told(), engine.consensus():
        pass
    engine.close()
