"""Steps on few weights tell what an algorithm takes of memory."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from bagua_algos import Algorithm
from bagua_algos.algorithms.qadam import QAdam
from experiments.simulated.memory import algorithm_trial
from experiments.simulated.memory.algorithm_trial import taken_by, try_algorithm
from experiments.simulated.memory.fitting import live_bytes
from tests.experiments.simulated.memory.counted import bytes_taken, plan_of

ALGORITHMS = sorted(
    path.stem for path in Path("conf/algo").glob("*.yaml") if not path.stem.startswith("torch_ddp")
)


@dataclass(frozen=True, kw_only=True)
class Hoarder(Algorithm):
    """Keeps two copies of the weights, and makes three more at step `at`."""

    workers_agree = False
    at: int = 0

    @property
    def num_early_steps(self):
        return self.at

    def init(self, context):
        return [bucket.weights.repeat(2, 1) for bucket in context.buckets]

    def on_step_end(self, context):
        if context.step == self.at:
            for bucket in context.buckets:
                bucket.weights.repeat(3, 1)


@dataclass(frozen=True, kw_only=True)
class Particular(Algorithm):
    """Trains matrices of 30 columns alone."""

    def init(self, context):
        raise RuntimeError("where are the 30 columns?")


@dataclass(frozen=True, kw_only=True)
class Forgetful(Algorithm):
    """Keeps its state beside its state."""

    def __post_init__(self):
        object.__setattr__(self, "own", {})

    def on_step_end(self, context):
        self.own[context.step] = context.buckets[0].weights.clone()


def weight_bytes(plan):
    return plan.workers * sum(p.nbytes for p in plan.model.parameters())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_what_a_training_takes(algorithm, tmp_path, monkeypatch):
    """Weights are most of it here, as they are where memory is short."""
    words = ("model=mlp", "workers=8", "batch_size=4", "max_steps=4", "cluster.stacking=loop")
    plan = plan_of(tmp_path, f"algo={algorithm}", *words)
    data = plan.task.load()
    counted = live_bytes(plan, data, try_algorithm(plan))
    assert bytes_taken(plan, data, monkeypatch) == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("elements", [1 << 16, 1 << 30])
def test_an_algorithm_of_a_users_own_is_tried_like_the_others(at, elements, tmp_path, monkeypatch):
    monkeypatch.setattr(algorithm_trial, "_ELEMENTS", elements)
    plan = plan_of(tmp_path, "algo=allreduce", "model=mlp", "workers=4", "max_steps=9")
    plan = replace(plan, algorithm=Hoarder(at=at), bucket_bytes=1 << 30)
    taken = try_algorithm(plan)
    weights = weight_bytes(plan)
    # weights, gradients, momentum, and its own
    assert taken.between_steps == pytest.approx(5 * weights, rel=0.05)
    assert taken.in_passes == taken.between_steps
    assert taken.at_most == pytest.approx(8 * weights, rel=0.05)


@pytest.mark.parametrize(("algorithm", "num_stepping"), [("decentralized", 2), ("allreduce", 1)])
def test_states_of_the_optimizer_count(algorithm, num_stepping, tmp_path):
    plan = plan_of(tmp_path, f"algo={algorithm}", "workers=2", "optim=adam")
    weights = sum(p.nbytes for p in plan.model.parameters())
    # weights, gradients; two moments
    counted = (2 * 2 + num_stepping * 2) * weights
    assert try_algorithm(plan).between_steps == pytest.approx(counted, rel=1e-2)


def test_weights_that_travel_count_in_backward_passes_alone(tmp_path):
    taken = try_algorithm(plan := plan_of(tmp_path, "algo=decentralized", "workers=4"))
    travelling = taken.in_passes - taken.between_steps
    assert travelling == pytest.approx(weight_bytes(plan), rel=0.02)


def test_a_round_of_the_background_counts(tmp_path, monkeypatch):
    """Though none is due in a trial's few milliseconds."""
    plan = plan_of(tmp_path, "algo=async", "workers=4")
    rounds = []
    all_reduce = algorithm_trial.StackedCommunicator.all_reduce_mean_
    monkeypatch.setattr(
        algorithm_trial.StackedCommunicator,
        "all_reduce_mean_",
        lambda self, x_w: rounds.append(x_w.shape) or all_reduce(self, x_w),
    )
    try_algorithm(plan)
    assert rounds


def test_few_weights_tell_of_many(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, "algo=low_precision_decentralized", "model=mlp", "workers=8")
    of_few = try_algorithm(plan)
    monkeypatch.setattr(algorithm_trial, "_ELEMENTS", 1 << 30)
    assert try_algorithm(plan) == pytest.approx(of_few, rel=0.03)


def test_a_trial_stays_small(tmp_path, monkeypatch):
    """Of 400 workers whose weights would take 850 MB, each time that they are copied."""
    plan = plan_of(tmp_path, "algo=low_precision_decentralized", "model=mlp", "workers=400")
    monkeypatch.setattr(algorithm_trial, "_MOST_ELEMENTS", 1 << 22)
    made = []
    live_bytes_of = algorithm_trial.LiveBytes

    def counted():
        made.append(live_bytes_of())
        return made[0]

    monkeypatch.setattr(algorithm_trial, "LiveBytes", counted)
    assert try_algorithm(plan).at_most > 5e9
    assert made[0].most < 30 * 4 * (1 << 22)


def test_a_trial_says_nothing_of_its_own(tmp_path):
    plan = plan_of(tmp_path, "algo=qadam", "workers=2", "max_steps=8")
    assert isinstance(plan.algorithm, QAdam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try_algorithm(plan)


def test_a_trial_leaves_nothing_behind(tmp_path):
    plan = plan_of(tmp_path, "algo=allreduce", "workers=2", "max_steps=8")
    plan = replace(plan, algorithm=Forgetful())
    drawn = torch.get_rng_state()
    taken = taken_by([plan])
    assert taken.between_steps > 3 * weight_bytes(plan)
    assert not plan.algorithm.own
    assert torch.get_rng_state().equal(drawn)


def test_training_says_why_an_algorithm_fails(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, "algo=allreduce", "model=mlp", "workers=2")
    failing = replace(plan, algorithm=Particular())
    weights = weight_bytes(plan)
    of_weights = (2 * weights, 2 * weights, 3 * weights)
    assert taken_by([failing]) == of_weights
    assert taken_by([failing, plan]) == taken_by([plan])
    monkeypatch.setattr(algorithm_trial, "try_algorithm", lambda plan: os._exit(1))
    assert taken_by([plan]) == of_weights
