"""Weights that a script loads beside a picture of others, in one bucket of several or by torch's
distributed checkpoints, which write to the weights in place before the model loads them.
"""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from bagua_algos import SGP, ChocoSGD, CompressedAllReduce, LocalSGD, PowerSGD, TopK
from bagua_algos.checkpoint import OPTIONS
from bagua_algos.compressors import SignScale
from bagua_algos.engine.engine import Engine
from bagua_algos.outer_optimizer import Nesterov, SlowMo
from tests.bagua_algos.engine.test_engine import ONE_BYTE, engine_of, layers


@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_that_is_loaded_is_refused_where_all_others_are_as_before(number):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, ChocoSGD(), bucket_bytes=ONE_BYTE)
    assert len(engine.context.buckets) == 2
    layer = model[number]
    layer.load_state_dict({name: x + 1 for name, x in layer.state_dict().items()})
    with pytest.raises(ValueError, match=r"^weights were loaded into the distributed model"):
        optimizer.step()
    engine.close()


def started() -> tuple[nn.Module, torch.optim.Optimizer, Engine]:
    """A model with tied weights, of an algorithm that keeps a picture of them."""
    model = layers(4, 4, 4)
    model[1].weight = model[0].weight
    engine, optimizer = engine_of(model, LocalSGD(interval=2, outer=Nesterov()))
    return model, optimizer, engine


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("is_by_state", [False, True])
@pytest.mark.parametrize("has_algorithms", [False, True])
def test_a_distributed_checkpoint_needs_the_algorithms_state(tmp_path, is_by_state, has_algorithms):
    model, optimizer, engine = started()
    train(model, optimizer)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    other, its_optimizer, its_engine = started()
    if is_by_state:
        weights, of_optimizer = get_state_dict(other, its_optimizer)
    else:
        weights, of_optimizer = other.state_dict(), {}
    checkpoint.load({"model": weights}, checkpoint_id=tmp_path, no_dist=True)
    if is_by_state:
        set_state_dict(
            other, its_optimizer, model_state_dict=weights, optim_state_dict=of_optimizer
        )
    else:
        other.load_state_dict(weights)
    if has_algorithms:
        its_engine.load_state_dict(engine.state_dict())
        for own, its in ((model, optimizer), (other, its_optimizer)):
            train(own, its)
        assert torch.equal(model[0].weight, other[0].weight)
    else:
        with pytest.raises(
            ValueError, match=r"^weights were loaded .* bagua_algos.load_state_dict"
        ):
            train(other, its_optimizer)
    engine.close()
    its_engine.close()


def test_a_model_may_load_its_own_weights():
    model, optimizer, engine = started()
    for _ in range(2):
        train(model, optimizer)
        with torch.no_grad():
            model[0].weight.mul_(0.5)  # a script's own change, which is training
        train(model, optimizer)
        for _ in range(2):
            model.load_state_dict(model.state_dict())
    train(model, optimizer)
    engine.close()


@pytest.mark.parametrize(
    "algorithm",
    [LocalSGD(interval=2, outer=SlowMo()), ChocoSGD(), SGP(overlap=True)],
    ids=["slowmo", "choco_sgd", "sgp"],
)
def test_a_state_belongs_to_the_weights_beside_which_it_was_saved(algorithm):
    model = layers(4, 4, 4)
    engine, optimizer = engine_of(model, algorithm)
    train(model, optimizer)
    engine.pause()
    state, weights = engine.state_dict(), copy.deepcopy(model.state_dict())
    train(model, optimizer)
    other = layers(4, 4, 4)
    its_engine, _ = engine_of(other, algorithm)
    other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"^this state was saved beside other weights .* worker"):
        its_engine.load_state_dict(state)
    other.load_state_dict(weights)
    its_engine.load_state_dict(state)
    for own in (engine, its_engine):
        own.close()


def test_a_state_of_before_workers_went_apart_goes_with_any_weights():
    """Nobody looks at the picture until then."""
    algorithm = LocalSGD(interval=2, start_step=2, outer=Nesterov())
    model, other = layers(4, 4), layers(4, 4)
    engine, optimizer = engine_of(model, algorithm)
    train(model, optimizer)
    its_engine, _ = engine_of(other, algorithm)
    its_engine.load_state_dict(engine.state_dict())
    assert its_engine.context.step == 1
    for own in (engine, its_engine):
        own.close()


SIGNS = partial(CompressedAllReduce, compressor=SignScale())
WITH_FEEDBACK = partial(SIGNS, error_feedback=True)


@pytest.mark.filterwarnings("ignore:.*error feedback")
@pytest.mark.parametrize(
    ("make_saved", "make_here"),
    [
        (SIGNS, WITH_FEEDBACK),
        (WITH_FEEDBACK, SIGNS),
        (TopK, partial(TopK, momentum=0.9)),
        (partial(PowerSGD, error_feedback=False), PowerSGD),
        (LocalSGD, partial(LocalSGD, outer=Nesterov())),
    ],
    ids=["signs", "signs without", "top_k", "power_sgd", "diloco"],
)
def test_a_state_without_what_an_algorithm_keeps_is_refused(make_saved, make_here):
    """It would go on without its error feedback, or its momentum, to the end."""
    engine, _ = engine_of(layers(4, 4), make_saved())
    its_engine, _ = engine_of(layers(4, 4), make_here())
    state = engine.state_dict()
    with pytest.raises(ValueError, match=r"of another set of options .* begin anew without"):
        its_engine.load_state_dict(state)
    del state["of"][OPTIONS]  # as of an earlier version
    its_engine.load_state_dict(state)
    for own in (engine, its_engine):
        own.close()
