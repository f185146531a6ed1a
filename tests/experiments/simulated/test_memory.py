"""What is counted for simulated workers is what their tensors take at a time."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bagua_algos.worker_axis import rows
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated import memory, simulate
from experiments.simulated.memory import (
    LiveBytes,
    live_bytes,
    needed_bytes,
    pass_bytes,
    state_bytes,
)
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.simulate import train_simulated
from host.errors import UserError

MB = 1 << 20


def plan_of(folder, *words):
    common = ["backend=sim", "task=mnist5k", "max_steps=2", "eval_every=2"]
    return make_plan(compose_config([*common, *words]), folder)


def counted_and_taken(plan, data):
    """Bytes that are counted for a training, and that its tensors take at the most."""
    profile = rehearse(plan, data, sharing=1, num_steps=2, seconds=0)
    counted = live_bytes(plan, data)
    torch.set_num_threads(1)
    with LiveBytes() as live:
        train_simulated(plan, data, profile, lambda row: None)
    return counted, live.most


def test_weights_and_states_are_given_back_after_a_training(tmp_path, monkeypatch):
    """Also by a fused optimizer, which is in a circle with its step."""
    monkeypatch.setattr(simulate, "_COLLECTED_BYTES", 0)
    plan = plan_of(tmp_path, "model=mlp", "workers=3", "optim=adam", "algo=local_sgd")
    data = plan.task.load()
    profile = rehearse(plan, data, sharing=1, num_steps=2, seconds=0)
    gc.collect()
    gc.disable()
    try:
        before = {id(x) for x in gc.get_objects() if isinstance(x, torch.Tensor)}
        train_simulated(plan, data, profile, lambda row: None)
        after = [x for x in gc.get_objects() if isinstance(x, torch.Tensor)]
        assert not [x.shape for x in after if id(x) not in before and x.numel() > 1000]
    finally:
        gc.enable()


def test_storages_count_until_they_are_freed():
    before = torch.zeros(MB // 4)
    with LiveBytes() as live:
        x = before + 1
        y = x.view(2, -1).add_(before.view(2, -1))
        assert live.most == MB
        del x, y
        x = before * 2
        assert live.most == MB
        y = x * 2
        assert live.most == 2 * MB
        del x, y


def test_what_backward_remembers_counts():
    layer, x = nn.Linear(256, 256, bias=False), torch.ones(1024, 256)
    with LiveBytes() as live:
        layer(torch.sigmoid(layer(x))).sum().backward()
    hidden, weights = 1024 * 256 * 4, 256 * 256 * 4
    assert 2 * hidden + weights <= live.most <= 4 * hidden + 2 * weights + 1024


@pytest.mark.parametrize(("algorithm", "num_stepping"), [("decentralized", 2), ("allreduce", 1)])
def test_states_of_the_optimizer_count(algorithm, num_stepping, tmp_path):
    plan = plan_of(tmp_path, f"algo={algorithm}", "workers=2", "optim=adam")
    weights = sum(p.nbytes for p in plan.model.parameters())
    # weights, gradients; two moments
    counted = (2 * 2 + num_stepping * 2) * weights
    assert state_bytes(plan) == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize(("num_bytes", "fitting"), [(0, 8), (100_000_000, 4), (900_000_000, 1)])
def test_trainings_side_by_side_have_a_copy_of_the_data_each(num_bytes, fitting, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_050_000_000)
    monkeypatch.setattr(memory, "needed_bytes", lambda plan, data: 100_000_000)
    plan = SimpleNamespace(load_data=lambda: np.ones(num_bytes, np.uint8))
    assert memory.fitting_alone(plan) == fitting


def test_sparse_gradients_are_refused_while_it_counts():
    model = StackedModel(nn.Embedding(5, 3, sparse=True), 1, stacking=Stacking(way="loop"))
    with LiveBytes(), pytest.raises(ValueError, match="make the layer without sparse=True"):
        model(torch.ones(1, 4, dtype=torch.long)).sum().backward()


@pytest.mark.parametrize("way", ["auto", "loop"])
def test_a_model_of_which_there_are_no_copies_is_a_users_mistake(way, tmp_path):
    plan = plan_of(tmp_path, "algo=allreduce", "model=mlp", "workers=2", f"cluster.stacking={way}")
    next(plan.model.parameters()).register_hook(lambda gradient: gradient)
    with pytest.raises(UserError, match="has a hook on its gradient"):
        needed_bytes(plan, plan.task.load())


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (("algo=allreduce", "model=mlp", "workers=16"), "loop"),
        (("algo=allreduce", "model=mlp", "workers=16"), "vmap"),
        (("algo=allreduce", "model=cnn", "workers=4"), "loop"),
        (("algo=allreduce", "model=cnn", "workers=4"), "vmap"),
        (("algo=allreduce", "model=cnn", "workers=4"), "parts"),
        (("algo=decentralized", "model=mlp", "workers=16"), "loop"),
    ],
)
def test_it_is_within_a_quarter_of_what_a_training_takes(words, way, tmp_path):
    plan = plan_of(tmp_path, *words, f"cluster.stacking={way}", "batch_size=32")
    data = plan.task.load()
    counted, taken = counted_and_taken(plan, data)
    assert taken == pytest.approx(counted, rel=0.25)
    assert needed_bytes(plan, data) > taken


@pytest.mark.parametrize("way", ["vmap", "parts"])
def test_an_evaluation_of_workers_that_differ_is_within_it_too(way, tmp_path, monkeypatch):
    """With all of 500 examples at once the training would take twice as much."""
    monkeypatch.setattr(rows, "CHUNK", 64)
    monkeypatch.setattr(memory, "CHUNK", 64)
    words = ("algo=local_sgd", "model=cnn", "workers=3", "batch_size=2", "max_steps=1")
    plan = plan_of(tmp_path, *words, "eval_every=1", f"cluster.stacking={way}")
    counted, taken = counted_and_taken(plan, plan.task.load())
    assert taken == pytest.approx(counted, rel=0.25)


def test_the_trial_changes_no_random_number(tmp_path):
    plan = plan_of(tmp_path, "algo=allreduce", "model=cnn", "workers=2")
    data = plan.task.load()
    before = torch.get_rng_state()
    assert pass_bytes(plan, data, "loop") > np.prod((32, 28, 28)) * 4
    live_bytes(plan, data)
    assert torch.get_rng_state().equal(before)
