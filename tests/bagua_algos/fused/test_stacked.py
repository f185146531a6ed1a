"""The optimizer of several workers in one process steps once for all rows of a bucket."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bagua_algos import AllReduce
from bagua_algos.autotune.make_engine import make_engine
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import Engine
from bagua_algos.fused.fuse import is_fused
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.cases import make_model, take_step
from tests.bagua_algos.fused.settings import SETTINGS
from tests.bagua_algos.fused.test_fuse import num_strips

WORKERS = 3


def hung(
    setting: str,
    *,
    fuses: bool,
    algorithm: Algorithm | None = None,
    dtype: torch.dtype = torch.float64,
    model: nn.Module | None = None,
) -> Engine:
    """On workers that differ, unless `algorithm` averages."""
    cls, options = SETTINGS[setting]
    model = StackedModel((model or make_model()).to(dtype), WORKERS)
    optimizer = cls(model.parameters(), **options)
    how = make_engine if fuses else Engine
    engine = how(
        *(model, optimizer, algorithm or Algorithm(), StackedCommunicator(WORKERS)),
        bucket_bytes=4096,
    )
    assert engine.has_fused == is_fused(optimizer) == fuses
    return engine


def train(engine: Engine, first: int, last: int) -> None:
    for step in range(first, last):
        take_step(engine.model, engine.context.optimizer, step, range(WORKERS))


def assert_close(ours: Optimizer, theirs: Optimizer) -> None:
    """Weights and states to rounding."""
    states = ours.state_dict()["state"], theirs.state_dict()["state"]
    torch.testing.assert_close(*states, rtol=1e-7, atol=1e-10)
    weights = ours.param_groups[0]["params"], theirs.param_groups[0]["params"]
    torch.testing.assert_close(*weights, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_worker_steps_as_by_itself(setting):
    one, other = (hung(setting, fuses=fuses) for fuses in (True, False))
    before = [p.data_ptr() for p in one.model.parameters()]
    options = [dict(group, params=None) for group in one.context.optimizer.param_groups]
    for engine in (one, other):
        train(engine, 0, 12)
    assert num_strips(one.context.optimizer) == len(one.context.buckets) > 1
    assert_close(one.context.optimizer, other.context.optimizer)
    assert [p.data_ptr() for p in one.model.parameters()] == before
    after = [dict(group, params=None) for group in one.context.optimizer.param_groups]
    assert after == options
    weights = next(one.model.parameters())
    assert not torch.equal(weights[0], weights[1]), "workers differ without averaging"


@pytest.mark.parametrize("setting", ["sgd momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("threads", [1, 3])
def test_workers_that_average_agree_to_the_bit(setting, threads):
    engine = hung(setting, fuses=True, algorithm=AllReduce(), dtype=torch.float32)
    torch.set_num_threads(threads)
    train(engine, 0, 10)
    torch.set_num_threads(1)
    for bucket in engine.context.buckets:
        assert (bucket.weights == bucket.weights[0]).all()


@pytest.mark.parametrize("loaded_fuses", [True, False])
def test_a_state_is_that_of_parameters(loaded_fuses):
    one, same = hung("adam", fuses=True), hung("adam", fuses=True)
    train(one, 0, 5)
    train(same, 0, 5)
    other = hung("adam", fuses=loaded_fuses)
    other.model.load_state_dict(one.model.state_dict())
    other.context.optimizer.load_state_dict(copy.deepcopy(one.context.optimizer.state_dict()))
    for engine in (same, other):
        train(engine, 5, 10)
    assert_close(other.context.optimizer, same.context.optimizer)


def test_padding_stays_zero_whatever_gradients_have_there():
    engine = hung("adam", fuses=True)
    for step in range(3):
        for bucket in engine.context.buckets:
            bucket.gradients[:, bucket.numel :] = 1.0
        train(engine, step, step + 1)
    for bucket in engine.context.buckets:
        assert bucket.weights.shape[1] > bucket.numel
        assert not bucket.weights[:, bucket.numel :].any()


@pytest.mark.parametrize("setting", ["sgd momentum", "adam"])
def test_a_parameter_without_a_gradient_stands_still(setting):
    one, other = (hung(setting, fuses=fuses) for fuses in (True, False))
    for engine in (one, other):
        idle = next(engine.model.parameters())
        for step in range(6):
            hook = engine.context.optimizer.register_step_pre_hook(
                lambda *_, idle=idle, step=step: setattr(
                    idle, "grad", None if step in (0, 3) else idle.grad
                )
            )
            train(engine, step, step + 1)
            hook.remove()
    assert_close(one.context.optimizer, other.context.optimizer)


def doubled(gradient: Tensor) -> Tensor:
    return 2 * gradient


def doubled_as_it_lies(gradient: Tensor) -> Tensor:
    """With the same gaps between its rows."""
    found = torch.empty_strided(gradient.shape, gradient.stride(), dtype=gradient.dtype)
    return found.copy_(2 * gradient)


def turned_in_its_place(gradient: Tensor) -> Tensor:
    """From the same address on, the rows the other way round, if it is a square matrix."""
    return (
        gradient.mT if gradient.dim() == 3 and gradient.shape[1] == gradient.shape[2] else gradient
    )


@pytest.mark.parametrize("moved", [doubled, doubled_as_it_lies, turned_in_its_place])
def test_gradients_that_are_somewhere_else_are_taken_from_there(moved):
    torch.manual_seed(0)
    square = nn.Sequential(nn.Linear(13, 13), nn.ReLU(), nn.Linear(13, 7))
    one, other = (hung("sgd momentum", fuses=fuses, model=square) for fuses in (True, False))
    for engine in (one, other):

        def move(optimizer: Optimizer, *_: object) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = moved(parameter.grad)

        engine.context.optimizer.register_step_pre_hook(move)
        train(engine, 0, 4)
    assert_close(one.context.optimizer, other.context.optimizer)


def test_bits_do_not_depend_on_threads():
    results = []
    for threads in (1, 2):
        engine = hung("adam", fuses=True, dtype=torch.float32)
        for p in engine.model.parameters():
            p.grad = torch.full_like(p, 0.3) + p.detach() ** 2
        torch.set_num_threads(threads)
        engine.context.optimizer.step()
        torch.set_num_threads(1)
        results.append([p.detach().clone() for p in engine.model.parameters()])
    assert all(map(torch.equal, *results))


def test_half_the_parameters_in_a_group_of_their_own():
    model = StackedModel(make_model(), WORKERS)
    own: list[nn.Parameter] = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": own[::2]}, {"params": own[1::2], "lr": 0.3}], lr=0.1)
    engine = make_engine(model, optimizer, Algorithm(), StackedCommunicator(WORKERS))
    train(engine, 0, 2)
    assert num_strips(optimizer) == 0, "groups share a bucket"


def test_a_parameter_with_attributes_is_stepped_by_itself():
    """An optimizer may ask for them."""
    model = make_model()
    engine = hung("adam", fuses=True, model=model)
    next(engine.model.parameters()).rate = 3.0
    train(engine, 0, 2)
    assert num_strips(engine.context.optimizer) == 0
