"""What `distribute` makes of its options, and what a script calls afterwards. The process group is
torch's own, of this process alone.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import (
    Algorithm,
    AllReduce,
    LocalSGD,
    PowerSGD,
    ProcessGroupCommunicator,
    QAdam,
)
from bagua_algos.autotune.tuner import Tuning
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.distribute import _engine, _is_sharded
from tests.bagua_algos.engine.test_engine import layers

FSDP, TENSOR = "torch.distributed.fsdp", "torch.distributed.tensor"


@dataclass(frozen=True, kw_only=True)
class Pausing(Algorithm):
    moments: list[str] = field(default_factory=list)

    def on_pause(self, context):
        self.moments.append("pause")

    def on_step_end(self, context):
        self.moments.append("step end")


def distribute(model: nn.Module, algorithm: Algorithm | None = None, *args: Any, **options: Any):
    optimizer = torch.optim.SGD([*model.parameters()] or [torch.zeros(1)], lr=0.1)
    return bagua_algos.distribute(model, optimizer, algorithm or AllReduce(), *args, **options)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def connected(*args: Communicator, **options: Any) -> Communicator:
    """What the lanes of a distributed model go by."""
    model, _ = distribute(layers(3, 4), None, *args, **options)
    found = _engine(model).context.communicator
    bagua_algos.release(model)
    return found


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("options", "shared_memory", "streams", "is_direct"),
    [
        ({}, None, 1, False),
        ({"streams": 2}, False, 2, False),
        ({"pattern": "direct"}, False, 1, True),
        ({"streams": 2, "pattern": "direct"}, False, 2, True),
        ({"shared_memory": True}, True, 1, False),
        ({"shared_memory": False}, False, 1, False),
    ],
)
def test_workers_are_connected_as_the_options_say(options, shared_memory, streams, is_direct):
    found = connected(**options)
    assert (found.shared_memory, found.streams) == (shared_memory, streams)
    assert (found.fixed_order, found.pieces) == (is_direct, False)


@pytest.mark.usefixtures("one_worker")
def test_pieces_go_by_as_many_streams_as_there_are():
    found = connected(ProcessGroupCommunicator(streams=3), pieces=True)
    assert (found.streams, found.pieces) == (3, True)
    found = connected(ProcessGroupCommunicator(streams=3, pieces=True), streams=2, pieces=False)
    assert (found.streams, found.pieces) == (2, False)


@pytest.mark.usefixtures("one_worker")
def test_a_communicator_is_taken_as_it_is():
    found = connected(ProcessGroupCommunicator(streams=2, fixed_order=True, shared_memory=None))
    assert (found.streams, found.fixed_order, found.shared_memory) == (2, True, None)


def on_two_devices() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, device="meta"))


@pytest.mark.usefixtures("one_worker")
def test_sums_through_shared_memory_have_no_pattern():
    with pytest.raises(ValueError, match="have no pattern: leave out pattern='ring'"):
        distribute(layers(3, 4), shared_memory=True, pattern="ring")


@pytest.mark.usefixtures("one_worker")
def test_memory_is_shared_where_all_of_a_model_is_on_the_cpu():
    with pytest.raises(ValueError, match="is for models on the CPU: leave it out"):
        distribute(on_two_devices(), shared_memory=True)
    with pytest.raises(ValueError, match=r"'1.weight' is on the meta device"):
        distribute(on_two_devices(), shared_memory=False)


@pytest.mark.usefixtures("one_worker")
def test_a_buffer_that_is_elsewhere_is_refused():
    model = layers(3, 4)
    model.register_buffer("mean", torch.zeros(2, device="meta"))
    with pytest.raises(ValueError, match=r"^mean is on meta, and the workers exchange tensors on"):
        distribute(model)


@pytest.mark.usefixtures("one_worker")
def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match=r"the optimizer has a parameter .* not the model's"):
        distribute(nn.Identity())


@pytest.mark.usefixtures("one_worker")
def test_a_model_that_cannot_train_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match=r"'1.weight' is on the meta device"):
        distribute(on_two_devices(), streams=17)


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize("autotune", [False, True])
def test_what_autotuning_has_found_is_told_where_it_was_asked_for(autotune):
    model, _ = distribute(layers(3, 4), autotune=autotune)
    assert isinstance(bagua_algos.tuning(model), Tuning if autotune else type(None))
    bagua_algos.release(model)


def test_a_parameter_that_nobody_used_counts_as_zero_by_default():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    distribute(model, None, StackedCommunicator(1))
    model["used"](torch.ones(1, 3)).sum().backward()
    assert model["idle"].weight.grad.eq(0).all()
    bagua_algos.release(model)


def test_two_models_train_beside_each_other_and_share_nothing():
    model, other = layers(3, 4, 5), layers(3, 4, 5)
    for own in (model, other):
        distribute(own, None, StackedCommunicator(1))
    shares = "shares parameters with one that is distributed already"
    for sharing in (model[0], nn.Sequential(model, nn.Linear(5, 1))):
        with pytest.raises(ValueError, match=shares):
            distribute(sharing, None, StackedCommunicator(1))
    bagua_algos.release(model)
    distribute(model[0], None, StackedCommunicator(1))
    for own in (model[0], other):
        bagua_algos.release(own)


def test_training_pauses_before_its_state_is_looked_at_and_before_its_end():
    algorithm = Pausing()
    model, optimizer = distribute(layers(3, 4), algorithm, StackedCommunicator(1))
    with bagua_algos.consensus(model):
        assert algorithm.moments == ["pause"]
    bagua_algos.state_dict(model)
    assert algorithm.moments == ["pause"] * 2
    bagua_algos.release(model)
    assert algorithm.moments == ["pause"] * 3
    take_step(model, optimizer)
    assert algorithm.moments == ["pause"] * 3


@pytest.mark.parametrize("is_compiled_first", [False, True])
def test_a_model_may_be_asked_for_by_what_it_was_compiled_to_or_from(is_compiled_first):
    plain = layers(3, 4)
    compiled = torch.compile(plain, backend="eager")
    own, other = (compiled, plain) if is_compiled_first else (plain, compiled)
    assert not bagua_algos.is_distributed(other)
    _, optimizer = distribute(own, LocalSGD(interval=2), StackedCommunicator(1))
    assert bagua_algos.is_distributed(own) and bagua_algos.is_distributed(other)
    with pytest.raises(ValueError, match="this model is distributed already"):
        distribute(other, None, StackedCommunicator(1))
    with bagua_algos.no_sync(other):
        pass
    take_step(other, optimizer)
    with bagua_algos.consensus(other):
        pass
    assert bagua_algos.tuning(other) is None
    state = bagua_algos.state_dict(other)
    assert state["step"] == 1
    bagua_algos.load_state_dict(other, state)
    bagua_algos.release(other)
    assert not bagua_algos.is_distributed(own) and not hasattr(plain, "no_sync")
    distribute(layers(3, 4), None, StackedCommunicator(1))
    assert not bagua_algos.is_distributed(other)


def test_a_model_has_no_sync_as_long_as_it_is_distributed():
    model, _ = distribute(layers(3, 4), None, StackedCommunicator(1))
    with model.no_sync():
        pass
    bagua_algos.release(model)
    assert not hasattr(model, "no_sync")


def test_a_state_is_taken_up():
    models = [distribute(layers(3, 4), LocalSGD(), StackedCommunicator(1)) for _ in range(2)]
    (saved, optimizer), (resumed, _) = models
    for _ in range(3):
        take_step(saved, optimizer)
    bagua_algos.load_state_dict(resumed, bagua_algos.state_dict(saved))
    assert bagua_algos.state_dict(resumed)["step"] == 3
    for model in (saved, resumed):
        bagua_algos.release(model)


class Unit(nn.Module):
    """In the place of FSDP2's."""


class Shards(nn.Parameter):
    """In the place of distributed tensors."""


@pytest.mark.parametrize(
    ("model", "is_sharded"),
    [
        (layers(3, 4), False),
        (nn.Sequential(nn.Linear(3, 4), Unit()), True),
        (Unit(), True),
        (nn.ParameterList([torch.zeros(3), Shards(torch.zeros(3))]), True),
    ],
)
def test_a_model_is_sharded_where_a_part_or_a_parameter_is(model, is_sharded, monkeypatch):
    """Also a part that has its whole parameters for a while, after a forward pass."""
    monkeypatch.setitem(sys.modules, FSDP, SimpleNamespace(FSDPModule=Unit))
    monkeypatch.setitem(sys.modules, TENSOR, SimpleNamespace(DTensor=Shards))
    assert _is_sharded(model) == is_sharded


def test_a_model_is_not_sharded_where_nobody_has_imported_what_shards(monkeypatch):
    monkeypatch.delitem(sys.modules, FSDP, raising=False)
    monkeypatch.delitem(sys.modules, TENSOR, raising=False)
    assert not _is_sharded(layers(3, 4))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bucket_bytes": 1}, "bucket_bytes is not for a model that fully_shard has divided"),
        ({"find_unused_parameters": True}, "find_unused_parameters is not supported"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "a GradScaler is not supported with fully"),
        ({"autotune": True}, "autotune is not for a model that fully_shard has divided"),
        ({"algorithm": PowerSGD(), "streams": 17}, "PowerSGD factorizes whole gradient matrices"),
    ],
)
def test_what_a_sharded_model_has_no_use_for_is_refused(sharded, options, sentence):
    model, workers = sharded
    with pytest.raises(ValueError, match=sentence):
        distribute(model, communicator=workers, **options)


def test_a_checkpoint_of_torchs_own_is_no_step_of_a_sharded_model(sharded):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, workers = sharded
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), workers)
    get_state_dict(model, optimizer)
    assert bagua_algos.state_dict(model)["step"] == 0
    take_step(model, optimizer)
    assert bagua_algos.state_dict(model)["step"] == 1
    bagua_algos.release(model)


class Around(torch.optim.Optimizer):
    """Lookahead and its like call no `Optimizer.__init__`."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.usefixtures("one_worker")
def test_an_optimizer_that_runs_no_hooks_is_refused_before_anything_is_measured():
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^Around has not .* distribute the optimizer that"):
        bagua_algos.distribute(model, Around(optimizer), AllReduce(), streams=17)
    bagua_algos.distribute(model, optimizer, AllReduce())
    take_step(model, Around(optimizer))
    assert bagua_algos.state_dict(model)["step"] == 1
    bagua_algos.release(model)


def test_an_optimizer_that_runs_no_hooks_is_refused_for_a_sharded_model(sharded):
    model, workers = sharded
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"^Around has not called"):
        bagua_algos.distribute(model, optimizer, AllReduce(), workers)


def test_a_sharded_model_is_released_like_any_other(sharded):
    model, workers = sharded
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    algorithm = Pausing()
    _, optimizer = distribute(model, algorithm, workers, grad_scaler=scaler)
    take_step(model, optimizer)
    assert bagua_algos.tuning(model) is None
    bagua_algos.release(model)
    take_step(model, optimizer)
    assert algorithm.moments == ["step end"]


def test_a_model_is_not_released_within_its_consensus(sharded):
    model, workers = sharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), workers)
    with bagua_algos.consensus(model), pytest.raises(ValueError, match=r"^release\(\) within "):
        bagua_algos.release(model)
    bagua_algos.release(model)


def test_a_state_outlives_the_release(sharded):
    model, workers = sharded
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    algorithm = QAdam(warmup_steps=1)
    bagua_algos.distribute(model, optimizer, algorithm, workers)
    step()
    state = bagua_algos.state_dict(model)
    bagua_algos.release(model)
    assert state["state"].moments
    bagua_algos.distribute(model, optimizer, algorithm, workers)
    bagua_algos.load_state_dict(model, state)
    assert bagua_algos.state_dict(model)["state"].moments
    bagua_algos.release(model)
