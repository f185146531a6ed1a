"""Learning rates that rise and fall."""

from pathlib import Path

import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.schedules import rise_and_fall
from host.errors import UserError

HALF = {"linear": 0.55, "cosine": 0.55}  # of both the middle, above a tenth that is left


@pytest.mark.parametrize("shape", HALF)
def test_rates_rise_then_fall(shape):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = rise_and_fall(optimizer, warmup=3, steps=11, shape=shape, least=0.1)
    rates = []
    for _ in range(13):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[7] == pytest.approx(2 * HALF[shape]) and rates[11:] == pytest.approx([0.2, 0.2])
    assert rates[3:12] == sorted(rates[3:12], reverse=True)
    with pytest.raises(ValueError, match=r"schedule\.shape is one of linear, cosine"):
        rise_and_fall(optimizer, warmup=0, steps=1, shape="square")


OWN = ("~schedule.factor", "~schedule.total_iters")
ONE_CYCLE = ("OneCycleLR", "+schedule.max_lr=0.1", "+schedule.total_steps=2000")
"""Which sets the rate itself."""


def with_schedule(name, *words):
    target = f"schedule._target_=torch.optim.lr_scheduler.{name}"
    return make_plan(compose_config(["algo=allreduce", *OWN, target, *words]), Path())


def test_a_scale_is_refused_where_the_schedule_sets_the_rate():
    assert with_schedule(*ONE_CYCLE).lr_scale == 1
    with pytest.raises(UserError, match=r"^lr_scale=3 multiplies .*leave lr_scale=1 and give"):
        with_schedule(*ONE_CYCLE, "lr_scale=3")
    assert with_schedule("ExponentialLR", "+schedule.gamma=0.9", "lr_scale=3").lr_scale == 3


def test_a_schedule_that_follows_a_metric_is_refused():
    with pytest.raises(UserError, match=r"ReduceLROnPlateau follows a metric.*schedule=cosine$"):
        with_schedule("ReduceLROnPlateau")


class Rates(torch.optim.SGD):
    """An optimizer that calls its learning rate otherwise."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["rate"] = group.pop("lr")


class Nothing:
    """No optimizer at all."""

    def __init__(self, params):
        pass


class StepsAlone:
    """A schedule that has no state."""

    def __init__(self, optimizer):
        pass

    def step(self):
        pass


class NoSteps:
    """No schedule at all."""

    def __init__(self, optimizer):
        pass


def with_own(group, kind, *words):
    own = [f"{group}._target_={__name__}.{kind.__name__}"]
    if group == "optim":
        own += ["~optim.lr", "~optim.momentum", "~optim.weight_decay"]
    return make_plan(compose_config(["algo=allreduce", *OWN, *own, *words]), Path())


@pytest.mark.parametrize(
    ("group", "kind", "words", "said"),
    [
        ("optim", Rates, (), "optim: Rates has parameter groups without a learning rate"),
        ("optim", Rates, ("lr_scale=2",), "optim: Rates has parameter groups without a learning"),
        ("optim", Nothing, (), r"optim: Nothing is no torch\.optim\.Optimizer: derive it"),
        ("schedule", NoSteps, (), r"schedule: NoSteps has no step\(\)"),
        ("schedule", StepsAlone, ("checkpoint_every=4",), r"StepsAlone has no state_dict\(\)"),
        ("schedule", StepsAlone, ("resume=elsewhere",), r"StepsAlone has no load_state_dict\(\)"),
    ],
)
def test_what_a_run_needs_of_a_users_class_is_asked_for_before_it(group, kind, words, said):
    with pytest.raises(UserError, match=said):
        with_own(group, kind, *words)


def test_a_schedule_without_a_state_trains_where_nothing_is_kept():
    assert with_own("schedule", StepsAlone).checkpoint_every == 0


def test_a_group_that_names_no_file_is_refused_in_a_sentence():
    words = ["algo=allreduce", *OWN, "~optim", "+optim={_target_: torch.optim.SGD, lr: 0.1}"]
    with pytest.raises(UserError, match=r"^optim names no file of conf/optim: give .* optim=NAME$"):
        make_plan(compose_config(words), Path())
