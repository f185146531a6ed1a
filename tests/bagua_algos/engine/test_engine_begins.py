"""What an engine asks for before it begins, what it then makes, and its defaults."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_algos import Algorithm, AllReduce, QAdam
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine, check_can_train
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.script.test_changes import FullyShardedDataParallel
from tests.bagua_algos.engine.test_dispatcher import Between
from tests.bagua_algos.engine.test_engine import ONE_BYTE, layers


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Choosing(Algorithm):
    """It can train no numbers in double precision."""

    def check_parameter(self, parameter):
        if parameter.dtype == torch.float64:
            raise ValueError("double precision is refused")


@pytest.mark.parametrize(
    ("model", "make_optimizer", "algorithm", "reason"),
    [
        (nn.Sequential(layers(1, 1), FullyShardedDataParallel()), sgd, AllReduce(), "is wrapped"),
        (layers(1, 1), sgd, QAdam(), "QAdam continues torch.optim.Adam or AdamW, got SGD"),
        (layers(1, 1), sgd, AllReduce(hierarchical="no"), "hierarchical must be True or False"),  # pyright: ignore
        (
            StackedModel(layers(1, 1), 3),
            lambda model: torch.optim.LBFGS(model.parameters()),
            AllReduce(),
            "LBFGS looks at whole tensors",
        ),
        (layers(1, 1).double(), sgd, Choosing(), "'0.weight': double precision is refused"),
    ],
    ids=["a wrapper", "an algorithm's optimizer", "no flag", "stacked workers", "a parameter"],
)
def test_what_cannot_train_is_refused_before_workers_communicate(
    model, make_optimizer, algorithm, reason
):
    workers = StackedCommunicator(3 if isinstance(model, StackedModel) else 1)
    with pytest.raises(ValueError, match=reason):
        check_can_train(model, make_optimizer(model), algorithm, workers)
    with pytest.raises(ValueError, match=reason):
        Engine(model, make_optimizer(model), algorithm, workers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_of_torchs_script_is_refused_and_one_that_holds_it_or_is_traced_trains():
    scripted = torch.jit.script(layers(3, 4))
    with pytest.raises(ValueError, match=r"made by torch.jit.script or .* takes no hooks"):
        check_can_train(scripted, sgd(scripted), AllReduce(), StackedCommunicator(1))
    traced = torch.jit.trace(layers(3, 4), torch.ones(2, 3))
    for model in (nn.Sequential(scripted), traced):
        weight = next(model.parameters())
        before, optimizer = weight.detach().clone(), sgd(model)
        engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        torch.testing.assert_close(weight, before - 0.2)
        engine.close()


@pytest.mark.parametrize("part", ["_attach", "_start_equal", "fuse"])
def test_an_error_at_the_start_leaves_no_thread(part, monkeypatch):
    def fail(*_):
        raise KeyError(part)

    options = {"fuse": fail} if part == "fuse" else {}
    if not options:
        monkeypatch.setattr(Engine, part, fail)
    model, workers = layers(3, 4), Between()
    with pytest.raises(KeyError):
        Engine(model, sgd(model), AllReduce(), workers, **options)  # pyright: ignore
    closed = [entry for entry in workers.log if entry[0] == "closed"]
    assert 0 < workers.log.count("duplicated") == len(closed)


def test_a_forward_within_torchs_wrapper_is_refused_and_one_of_the_model_itself_is_not():
    """The wrapper is none, for torch takes seconds to make one, but the forward is torch's."""
    model = layers(3, 4)
    engine = Engine(model, sgd(model), AllReduce(), StackedCommunicator(1))
    wrapped = cast(DistributedDataParallel, SimpleNamespace(_pre_forward=model))
    with pytest.raises(ValueError, match="was wrapped in DistributedDataParallel, which would"):
        DistributedDataParallel.forward(wrapped, torch.ones(2, 3))
    model(torch.ones(2, 3))
    engine.close()


def test_silent_workers_are_named_after_ten_minutes_where_nobody_says_otherwise():
    model = layers(3, 4)
    for options, limit_s in (({}, 600.0), ({"timeout_s": 60.0}, 60.0)):
        workers = Between()
        Engine(model, sgd(model), AllReduce(), workers, **options).close()
        assert ("limited", 1, limit_s) in workers.log


@pytest.mark.parametrize(
    ("options", "num_lanes"),
    [
        ({}, 1),
        ({"may_move": True}, 2),
        ({"bucket_bytes": ONE_BYTE}, 2),
        ({"may_move": True, "bucket_bytes": ONE_BYTE}, 2),
    ],
)
def test_there_is_a_lane_for_every_bucket_there_may_be_but_no_more_than_two(options, num_lanes):
    """Parameters that may move may each get a bucket of their own."""
    model = layers(3, 4, 5)
    engine = Engine(model, sgd(model), AllReduce(), Between(), **options)
    assert engine.dispatcher.num_lanes == num_lanes
    engine.close()


def test_the_optimizer_is_fused_where_that_is_asked_for_and_can_be():
    def fuse(buckets, optimizer):
        asked.append((buckets, optimizer))
        return can_be

    model, asked = layers(3, 4), []
    optimizer = sgd(model)
    for can_be in (True, False):
        engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1), fuse=fuse)
        assert engine.has_fused is can_be and asked[-1] == (engine.context.buckets, optimizer)
        engine.relayout([(parameter,) for parameter in model.parameters()])
        assert asked[-1] == (engine.context.buckets, optimizer)  # which are others now
        engine.close()
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    assert not engine.has_fused and len(asked) == 4
    engine.close()


def test_backward_ends_once_the_buckets_of_every_lane_are_done():
    """The first lane has no more buckets when the second one still has its own."""
    has_ended = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Slow(Algorithm):
        def on_bucket_ready(self, context, bucket):
            assert bucket.index == 0 or not has_ended.wait(0.1)

        def on_backward_end(self, context):
            has_ended.set()

    model = layers(3, 4, 5)
    engine = Engine(model, sgd(model), Slow(), Between(), bucket_bytes=ONE_BYTE)
    model(torch.ones(2, 3)).sum().backward()
    assert has_ended.is_set()
    engine.close()
