"""What is counted for simulated workers is what their tensors take at a time."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bagua_algos.worker_axis import rows
from experiments.simulated import simulate
from experiments.simulated.memory import fitting
from experiments.simulated.memory.algorithm_trial import try_algorithm
from experiments.simulated.memory.fitting import (
    check_memory,
    fitting_at_once,
    live_bytes,
    needed_bytes,
    pass_bytes,
)
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.simulate import train_simulated
from host.errors import UserError
from tests.experiments.simulated.memory.counted import bytes_taken, plan_of


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


@pytest.mark.parametrize(("num_bytes", "num_fitting"), [(0, 8), (100_000_000, 4), (900_000_000, 1)])
def test_trainings_side_by_side_have_a_copy_of_the_data_each(num_bytes, num_fitting, monkeypatch):
    monkeypatch.setattr(fitting, "free_bytes", lambda: 1_050_000_000)
    monkeypatch.setattr(fitting, "needed_bytes", lambda plan, data: 100_000_000)
    plan = SimpleNamespace(load_data=lambda: np.ones(num_bytes, np.uint8))
    assert fitting.fitting_alone(plan) == num_fitting


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
def test_it_is_within_a_quarter_of_what_a_training_takes(words, way, tmp_path, monkeypatch):
    plan = plan_of(tmp_path, *words, f"cluster.stacking={way}", "batch_size=32")
    data = plan.task.load()
    counted = live_bytes(plan, data, try_algorithm(plan))
    taken = bytes_taken(plan, data, monkeypatch)
    assert taken == pytest.approx(counted, rel=0.25)
    assert needed_bytes(plan, data) > taken


@pytest.mark.parametrize("way", ["vmap", "parts"])
def test_an_evaluation_of_workers_that_differ_is_within_it_too(way, tmp_path, monkeypatch):
    """With all of 500 examples at once the training would take twice as much."""
    monkeypatch.setattr(rows, "CHUNK", 64)
    monkeypatch.setattr(fitting, "CHUNK", 64)
    words = ("algo=local_sgd", "model=cnn", "workers=3", "batch_size=2", "max_steps=1")
    plan = plan_of(tmp_path, *words, "eval_every=1", f"cluster.stacking={way}")
    data = plan.task.load()
    counted = live_bytes(plan, data, try_algorithm(plan))
    taken = bytes_taken(plan, data, monkeypatch)
    assert taken == pytest.approx(counted, rel=0.25)


def test_more_than_there_is_of_weights_is_refused_without_a_trial(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, "algo=allreduce", "model=mlp", "workers=16")
    weights = sum(p.nbytes for p in plan.model.parameters())
    monkeypatch.setattr(fitting, "free_bytes", lambda: 31 * weights)
    monkeypatch.setattr(fitting, "taken_by", lambda plans: pytest.fail("tried"))
    with pytest.raises(UserError, match="algo=allreduce need at least"):
        check_memory(plan, plan.task.load())


def plans_and_needs(folder, *algorithms):
    """Of each algorithm a plan and the bytes that it needs, and the data of all."""
    plans = [plan_of(folder, f"algo={name}", "model=mlp", "workers=16") for name in algorithms]
    data = plans[0].task.load()
    return plans, [needed_bytes(plan, data) for plan in plans], data


def test_what_an_algorithm_keeps_is_refused_too(tmp_path, monkeypatch):
    algorithms = ("decentralized", "low_precision_decentralized")
    plans, needed, data = plans_and_needs(tmp_path, *algorithms)
    assert needed[1] > 1.5 * needed[0]
    monkeypatch.setattr(fitting, "free_bytes", lambda: sum(needed) // 2)
    check_memory(plans[0], data)
    with pytest.raises(UserError, match="low_precision_decentralized need about"):
        check_memory(plans[1], data)


def test_the_algorithm_that_takes_most_says_how_many_fit(tmp_path, monkeypatch):
    algorithms = ("low_precision_decentralized", "allreduce")
    plans, needed, data = plans_and_needs(tmp_path, *algorithms)
    monkeypatch.setattr(fitting, "free_bytes", lambda: 3 * needed[0])
    assert fitting_at_once(plans, data) == fitting_at_once(plans[:1], data) == 2
    assert fitting_at_once(plans[1:], data) == int(0.8 * 3 * needed[0] / needed[1]) > 2


def test_the_trial_changes_no_random_number(tmp_path):
    plan = plan_of(tmp_path, "algo=allreduce", "model=cnn", "workers=2")
    data = plan.task.load()
    before = torch.get_rng_state()
    assert pass_bytes(plan, data, "loop") > np.prod((32, 28, 28)) * 4
    live_bytes(plan, data, try_algorithm(plan))
    assert torch.get_rng_state().equal(before)
