"""A simulated run that goes on from a checkpoint: its record is that of one that never stopped."""

import random
import shutil
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.simulated.simulate import train_simulated
from experiments.training.checkpoints.checkpoint import Checkpoints
from tests import app
from tests.experiments.runs.test_resume import flat
from tests.experiments.simulated.profiles import profile_of_a_second

SMALL = ("model=mlp", "model.hidden=[8]", "workers=2", "net=none", "net.rate_mbit=10")
STEPS = ("max_steps=8", "eval_every=4", "log_every=1", "checkpoint_every=4")

PROFILE = replace(profile_of_a_second(), warm_up_s=0.7)
"""A step takes a second, and what the network takes: 50 ms at 10 Mbit/s."""

OF_ALL = "cluster.jitter.steps=[1,1,1,1,50,5,50,5]"
OF_EACH = "cluster.jitter.steps=[[1,2],[2,1],[1,1],[1,3],[5,1],[1,9],[2,2],[7,1],[1,1]]"
TRACE = ("cluster.jitter=trace", OF_ALL)
SCHEDULE = ("net.schedule=[{at_s: 3, rate_mbit: 1}, {at_s: 7.5, rate_mbit: 2}]",)
ASYNC = ("algo=async", "algo.interval_ms=1500")


def plan_of(folder, *words):
    folder.mkdir(exist_ok=True)
    return make_plan(compose_config([*words, *SMALL, *STEPS, "backend=sim"]), folder)


def rows_of(plan, data):
    rows = []
    train_simulated(plan, data, PROFILE, rows.append)
    return rows


class Drawing(nn.Module):
    """A layer times a number that `draw` gives."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.draw = nn.Linear(784, 10), draw

    def forward(self, x_b):
        return self.layer(x_b.flatten(1)) * self.draw()


def of_numpy():
    """As `np.random.random`, which copies of a model would have a generator of their own of."""
    return np.random.random()


@pytest.mark.parametrize("draw", [random.random, of_numpy, partial(torch.rand, ())])
def test_a_model_that_draws_is_repeated_and_goes_on_bit_for_bit(draw, tmp_path):
    words = ("algo=allreduce", "cluster.stacking=loop")
    plans = [plan_of(tmp_path / name, *words) for name in ("whole", "again")]
    plans.append(resumed_plan(tmp_path, *words))
    data = plans[0].task.load()
    losses = []
    for plan in plans:
        object.__setattr__(plan, "model", Drawing(draw))
        _ = random.random(), np.random.random(), torch.rand(())  # as rehearsals do
        losses.append([(row.step, row.loss, row.validation_loss) for row in rows_of(plan, data)])
    whole, again, resumed = losses
    assert whole == again
    assert resumed == [row for row in whole if row[0] > 4]


def late(rows):
    """From the checkpoint on."""
    return [row for row in rows if row.step > 4]


def check_alike(rows, others):
    for ours, theirs in zip(rows, others, strict=True):
        expected = asdict(theirs)
        for name, value in asdict(ours).items():
            if isinstance(value, float):
                assert value == pytest.approx(expected[name], rel=1e-9), name
            elif name == "bytes_sent":  # a checkpoint has a whole number of the average worker's
                assert abs(value - expected[name]) <= 1
            else:
                assert value == expected[name], name


def resumed_plan(folder, *words):
    plan = plan_of(folder / "resumed", *words, f"resume={folder / 'whole'}")
    return replace(plan, resume_step=4)


@pytest.mark.parametrize(
    "words",
    [
        ("algo=allreduce", *TRACE),
        ("algo=allreduce", "cluster.jitter=lognormal", "cluster.jitter.sigma=0.5"),
        ("algo=allreduce", *SCHEDULE),
        ("algo=allreduce", "net.faults=[{worker: 1, at_s: 6.25, for_s: 3}]"),
        ("algo=local_sgd", "algo.interval=3", "cluster.jitter=trace", OF_EACH, *SCHEDULE),
        (*ASYNC, *SCHEDULE),
        (*ASYNC, *SCHEDULE, "cluster.jitter=trace", OF_EACH),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_the_record_of_a_resumed_run_is_that_of_the_unbroken_one(words, tmp_path):
    plan = plan_of(tmp_path / "whole", *words)
    data = plan.task.load()
    whole = rows_of(plan, data)
    resumed = rows_of(resumed_plan(tmp_path, *words), data)
    assert len(late(whole)) == 5
    check_alike(resumed, late(whole))
    times_s = [
        folder.load(8)["clocks_s"]
        for folder in (Checkpoints(tmp_path / name, 0, 1) for name in ("whole", "resumed"))
    ]
    assert times_s[0] == pytest.approx(times_s[1], rel=1e-9)


class DrawingNorm(Drawing):
    """Draws in evaluations, too, which average its normalization's buffers."""

    def __init__(self):
        super().__init__(of_numpy)
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x_b):
        return self.norm(super().forward(x_b))


@pytest.mark.parametrize("algorithm", ["allreduce", "local_sgd"])
def test_the_last_evaluation_leaves_no_trace_in_a_checkpoint(algorithm, tmp_path):
    """A run that ends between two evaluations is evaluated at its end; a longer one is not."""
    words = (f"algo={algorithm}", "cluster.stacking=loop")
    states = []
    for num_steps in (6, 7):
        plan = plan_of(tmp_path / f"{num_steps}", *words)
        plan = replace(plan, workers=3, max_steps=num_steps, checkpoint_every=3, eval_every=4)
        object.__setattr__(plan, "model", DrawingNorm())
        rows = rows_of(plan, plan.task.load())
        assert [row.step for row in rows if row.is_evaluation] == [4, num_steps]
        states.append(Checkpoints(plan.folder, 0, 1).load(6) | {"data_wait_s": None})
    torch.testing.assert_close(*map(flat, states), rtol=0, atol=0)


def test_a_checkpoint_that_knows_no_workers_clock_sets_all_to_the_slowest_one(tmp_path):
    words = ("algo=local_sgd", "algo.interval=100", "cluster.jitter=trace", OF_EACH)
    plan = plan_of(tmp_path / "whole", *words)
    data = plan.task.load()
    whole = rows_of(plan, data)
    own = Checkpoints(tmp_path / "whole", 0, 1)
    state = own.load(4)
    assert max(state["clocks_s"]) == state["time_s"]
    assert min(state["clocks_s"]) < state["time_s"] - 0.5
    del state["clocks_s"]
    own.save(4, state)
    resumed = rows_of(resumed_plan(tmp_path, *words), data)
    at_4 = next(row.time_s for row in whole if row.step == 4)
    assert [row.time_s - at_4 for row in resumed if row.kind == "step"] == pytest.approx(
        [5, 10, 12, 15]
    )


def test_a_resumed_run_goes_on_by_the_profile_that_was_measured(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    words = ("algo=allreduce", "backend=sim", *SMALL, *STEPS, *TRACE)
    run = app.run(*words, f"hydra.run.dir={whole}")
    assert run.returncode == 0, run.stderr
    shutil.rmtree(whole / "checkpoints" / "step_00000008")
    run = app.run(f"resume={whole}", f"hydra.run.dir={resumed}")
    assert run.returncode == 0, run.stderr
    check_alike(load_rows(resumed), load_rows(whole))
    profiles = [(folder / "profile.yaml").read_text() for folder in (whole, resumed)]
    assert profiles[0] == profiles[1]
