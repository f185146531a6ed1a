"""How simulated workers are computed. Tests that compare bits ask for one way: what is measured may
come out otherwise.
"""

import itertools
import random
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.simulated.stacking import (
    _fastest,
    choose_stacking,
    median_times,
)
from experiments.training.checkpoints.checkpoint import STACKING, go_on_alike
from host.errors import UserError
from tests import app
from tests.bagua_algos.worker_axis.models import TwoNames

SMALL = ("algo=bytegrad", "backend=sim", "model=mlp", "workers=2", "net=slow_tcp")


def plan_of(folder, *overrides):
    return make_plan(compose_config([*SMALL, *overrides]), folder)


class Drawing(nn.Module):
    """As the MLP, with dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 10))

    def forward(self, x_b):
        return self.layers(x_b)


class ByData(Drawing):
    def forward(self, x_b):
        return self.layers[2](x_b.flatten(1)) * (2 if x_b.sum() > 0 else 1)


class Clipped(Drawing):
    """Changes its weights in place."""

    def forward(self, x_b):
        with torch.no_grad():
            self.layers[2].weight.clamp_(-0.02, 0.02)
        return self.layers[2](x_b.flatten(1))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


def with_model(plan, model):
    object.__setattr__(plan, "model", model)
    return plan


def test_what_is_asked_for_is_taken_and_the_rest_is_measured(tmp_path):
    plan = plan_of(tmp_path, "cluster.stacking=loop")
    data = plan.task.load()
    choice = choose_stacking(plan, data)
    assert (choice.way, choice.seconds) == ("loop", {})
    choice = choose_stacking(plan_of(tmp_path), data)
    assert choice.way in choice.seconds and set(choice.seconds) == {"vmap", "loop"}  # one thread
    assert "of 2: vmap" in str(choice)


@pytest.mark.parametrize(
    ("threads", "ways"), [(2, {"parts", "shares"}), (3, {"vmap", "parts", "shares"})]
)
def test_by_vmap_is_measured_where_parts_leave_cores_without_a_worker(tmp_path, threads, ways):
    plan = plan_of(tmp_path)
    torch.set_num_threads(threads)
    assert plan.workers == 2 and set(choose_stacking(plan, plan.task.load()).seconds) == ways


def test_a_model_is_computed_only_in_ways_that_do(tmp_path):
    plan = plan_of(tmp_path)
    data = plan.task.load()
    choice = choose_stacking(with_model(plan, ByData()), data)
    assert choice.way == "loop" and "vmap" in choice.refused
    drawing = with_model(plan_of(tmp_path, "cluster.stacking=shares"), Drawing())
    with pytest.raises(UserError, match="shares does not do for model=mlp"):
        choose_stacking(drawing, data)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of clamp_ by vmap
@pytest.mark.parametrize("way", ["parts", "shares"])
def test_threads_do_not_change_weights_in_place(tmp_path, way):
    plan = with_model(plan_of(tmp_path, f"cluster.stacking={way}"), Clipped())
    with pytest.raises(UserError, match=f"{way} does not do .* changes a parameter in place"):
        choose_stacking(plan, plan.task.load())


class Scaled(Drawing):
    """By a number that `draw` gives at each call."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x_b):
        return self.layers[2](x_b.flatten(1)) * self.draw()


def of_numpy():
    """As `np.random.random`, which copies of a model would have a generator of their own of."""
    return np.random.random()


def counted():
    """A function that gives another number at each call, and is copied with what it counts."""
    return partial(next, itertools.count(1))


@pytest.mark.parametrize(
    ("make_draw", "refused"),
    [
        (lambda: random.random, {"vmap", "parts", "shares"}),
        (lambda: of_numpy, {"vmap", "parts", "shares"}),
        (lambda: partial(torch.rand, ()), {"parts", "shares"}),
        (counted, {"parts", "shares"}),
        (lambda: partial(float, 2), set()),
    ],
    ids=["Python", "NumPy", "torch", "own", "none"],
)
def test_a_model_that_draws_is_computed_in_ways_that_keep_the_order(make_draw, refused, tmp_path):
    torch.set_num_threads(2)
    plan = plan_of(tmp_path)
    choice = choose_stacking(with_model(plan, Scaled(make_draw())), plan.task.load())
    assert set(choice.refused) == refused


@pytest.mark.parametrize(
    ("seconds", "way"),
    [
        ({"vmap": 1.0, "loop": 0.95}, "vmap"),  # nearly equal: no reason to change
        ({"vmap": 1.0, "loop": 0.8, "shares": 0.75}, "loop"),
        ({"loop": 1.0, "shares": 0.5}, "shares"),
        ({"vmap": 0.95, "parts": 1.0, "shares": 0.92}, "parts"),
        ({"vmap": 0.85, "parts": 1.0}, "vmap"),
    ],
)
def test_what_is_clearly_the_fastest_is_chosen(seconds, way):
    assert _fastest(seconds) == way


@pytest.mark.parametrize(
    ("cold_s", "warm_s", "num_passes"),
    [
        ((0.5, 0.1), (0.011, 0.010), (4, 4)),  # what is done once says little
        ((0.5, 0.1), (0.021, 0.010), (2, 2)),
        ((1.5, 0.1), (0.010, 0.010), (1, 2)),
    ],
)
def test_a_way_that_is_hopeless_is_not_waited_for_again(cold_s, warm_s, num_passes):
    passes = {"vmap": [cold_s[0], *[warm_s[0]] * 3], "loop": [cold_s[1], *[warm_s[1]] * 3]}
    times = median_times(("vmap", "loop"), lambda way: passes[way].pop(0))
    assert times["loop"] == warm_s[1]
    assert times["vmap"] == (cold_s[0] if num_passes[0] == 1 else warm_s[0])
    assert [4 - len(left) for left in passes.values()] == list(num_passes)


def test_a_known_way_that_does_not_do_is_no_rule(tmp_path):
    """A run that asks for it is refused; one that has left it open is measured."""
    plan = with_model(plan_of(tmp_path), Drawing())
    data = plan.task.load()
    torch.set_num_threads(2)
    choice = choose_stacking(plan, data, "shares")
    assert choice.way in {"vmap", "loop"} == set(choice.seconds) and "shares" in choice.refused
    known = choose_stacking(plan, data, "loop")
    assert (known.way, known.seconds, known.refused) == ("loop", {}, {})


def test_a_resumed_run_goes_on_in_its_own_way_bit_for_bit(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    words = ("max_steps=8", "eval_every=4", "log_every=1", "checkpoint_every=4")
    run = app.run(*SMALL, *words, "cluster.stacking=shares", f"hydra.run.dir={whole}")
    assert run.returncode == 0, run.stderr
    assert app.summary(whole)["stacking"]["way"] == "shares"
    assert yaml.safe_load((whole / "config.yaml").read_text())["cluster"]["stacking"] == "shares"
    shutil.rmtree(whole / "checkpoints" / "step_00000008")
    run = app.run(f"resume={whole}", "cluster.stacking=auto", f"hydra.run.dir={resumed}")
    assert run.returncode == 0, run.stderr
    assert app.summary(resumed)["stacking"]["way"] == "shares"
    losses = [
        [(row.step, row.loss, row.accuracy) for row in load_rows(folder)]
        for folder in (whole, resumed)
    ]
    assert losses[0] == losses[1]


def test_a_module_of_two_names_learns_the_same_however_workers_are_computed(tmp_path):
    words = [f"model._target_={TwoNames.__module__}.TwoNames", "~model.hidden", "log_every=1"]
    words += ["model.num_inputs=784", "model.num_outputs=10", "max_steps=4", "eval_every=2"]
    found = []
    for way in ("auto", "loop"):
        folder = tmp_path / way
        run = app.run(*SMALL, *words, f"cluster.stacking={way}", f"hydra.run.dir={folder}")
        assert run.returncode == 0, run.stderr
        found.append([row.validation_loss or row.loss for row in load_rows(folder)])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_resumed_run_is_refused_another_way(tmp_path):
    plan = plan_of(tmp_path, "cluster.stacking=vmap")
    model = StackedModel(plan.model, 2)
    with pytest.raises(UserError, match="a run that began by loop: leave it out"):
        go_on_alike({STACKING: {"way": "loop", "threads": 1}}, plan, model)
    go_on_alike({}, plan, model)  # a checkpoint of before
    assert model.stacking.way == "vmap"


def test_the_number_of_threads_changes_no_bit_of_workers_side_by_side(tmp_path):
    torch.manual_seed(0)
    model, x_wb = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), torch.randn(3, 2, 1, 8, 8)
    outputs = [
        StackedModel(model, 3, stacking=Stacking(way="shares", threads=threads))(x_wb)
        for threads in (1, 2, 3)
    ]
    torch.set_num_threads(1)
    assert outputs[0].equal(outputs[1]) and outputs[0].equal(outputs[2])
