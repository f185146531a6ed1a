"""Learning rates that rise and fall."""

from pathlib import Path

import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.schedules import check_length, rise_and_fall, step
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


@pytest.mark.parametrize("words", [("lr_scale=1e300",), ("optim.lr=1e30", "lr_scale=1e9")])
def test_a_learning_rate_beyond_float32_is_refused(words):
    """Torch would end the rehearsal with a message of its own."""
    with pytest.raises(UserError, match=r"^the learning rate is \S+, with .*float32 ends at"):
        make_plan(compose_config(["algo=allreduce", *words]), Path())
    assert make_plan(compose_config(["algo=allreduce", "lr_scale=1e30"]), Path()).lr_scale == 1e30


def test_steps_of_a_factor_are_of_one_that_changes_the_rate():
    words = ["algo=allreduce", "schedule.total_iters=5"]
    with pytest.raises(UserError, match=r"^schedule\.total_iters=5 changes nothing while .*=1: "):
        compose_config(words)
    for word in ("schedule=linear_warmup", "experiment=jane_austen", "schedule.total_iters=0"):
        compose_config([*words, word])
    compose_config(["algo=allreduce", "experiment=jane_austen", "schedule=constant"])
    plan = make_plan(compose_config([*words, "schedule.factor=0.5"]), Path())
    optimizer = plan.make_optimizer(plan.model.parameters())
    plan.make_schedule(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5 * optimizer.param_groups[0]["initial_lr"]


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


class AllInOrder(torch.optim.lr_scheduler.LRScheduler):
    """Has a rate for every step of a run, and none for one that comes too early."""

    def __init__(self, optimizer: torch.optim.Optimizer, length: int) -> None:
        self.rates, self.num_taken = [1.0] * (length + 1), 0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.num_taken += 1
        assert self.last_epoch == self.num_taken - 1
        return [self.rates[self.last_epoch]]


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("torch.optim.lr_scheduler.OneCycleLR", "total_steps"),
        (f"{__name__}.AllInOrder", "length"),
    ],
)
def test_a_schedule_that_ends_before_the_run_is_refused(name, length):
    words = ["algo=allreduce", *OWN, f"schedule._target_={name}", f"+schedule.{length}=20"]
    words += ["+schedule.max_lr=0.1"] if length == "total_steps" else []
    assert make_plan(compose_config([*words, "max_steps=20"]), Path()).max_steps == 20
    with pytest.raises(
        UserError, match=r"^schedule: it ends before max_steps \(.*\): give it as many"
    ):
        make_plan(compose_config([*words, "max_steps=21"]), Path())


def cycle_after_a_step(optimizer):
    parts = [
        torch.optim.lr_scheduler.ConstantLR(optimizer),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3),
    ]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[1])


def test_a_schedule_whose_end_nobody_sees_before_ends_the_run_in_a_sentence():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    check_length(lambda: cycle_after_a_step(optimizer), 6)
    schedule = cycle_after_a_step(optimizer)
    optimizer.step()
    for _ in range(4):
        step(schedule)
    with pytest.raises(
        UserError, match=r"max_steps \(Tried to step 4 times.* is 3\): give it as many"
    ):
        step(schedule)
