"""An object of a user's own that is none of what its group stands for."""

import functools
import inspect
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.kinds import BASES, PROTOCOLS, check_kind
from experiments.plan.schema import GROUPS
from experiments.tasks.mnist5k import MNIST5k
from host.errors import UserError
from tests.experiments.plan.told import told


class Stranger:
    """Nothing that a run has."""

    def __init__(self, **options: object) -> None:
        pass


class InNoOrder(Stranger):
    """Half a sampler."""

    crop = False


class Delegate(Stranger):
    """A task in all but its class."""

    def __getattr__(self, name: str) -> Any:
        return getattr(MNIST5k(target_accuracy=0.9), name)


WORDS = ["algo=allreduce", "model=mlp", "backend=sim", "workers=2", "net=none"]


@pytest.fixture
def plan_with(tmp_path, monkeypatch):
    """Makes a plan in which `group` is a file of one's own that names `target`."""
    monkeypatch.chdir(tmp_path)

    def make(group: str, target: str) -> Any:
        own = tmp_path / "conf" / group / "mine.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"_target_: {target}\n")
        words = [word for word in WORDS if not word.startswith(f"{group}=")]
        return make_plan(compose_config([*words, f"{group}=mine"]), tmp_path / "run")

    return make


@pytest.mark.parametrize("group", sorted({*BASES, *PROTOCOLS} - {"optim"}))
@pytest.mark.parametrize("target", [f"{__name__}.Stranger", "os.getcwd"])
def test_what_is_none_is_refused_by_the_name_of_its_group(group, target, plan_with):
    name = "Stranger" if target.endswith("Stranger") else "str"
    base = BASES[group] if group in BASES else PROTOCOLS[group][0]
    with pytest.raises(UserError, match=rf"^{group}: {name} is no {base}: ") as refused:
        plan_with(group.replace(".", "/"), target)
    assert "\n" not in str(refused.value)


def test_what_is_to_be_done_is_said(plan_with):
    with pytest.raises(UserError, match=r"bagua_algos\.Algorithm: derive it from that$"):
        plan_with("algo", f"{__name__}.Stranger")
    with pytest.raises(UserError, match=r"Sampler: it has no order$"):
        plan_with("data/sampler", f"{__name__}.InNoOrder")
    with pytest.raises(UserError, match=r"^algo\._partial_ makes a function, and no .* leave it"):
        make_plan(compose_config([*WORDS, "+algo._partial_=true"]), Path())
    with pytest.raises(UserError, match=r"^net\._partial_ makes a function"):
        check_kind(functools.partial(os.getcwd), "net")


def test_a_network_that_is_none_is_told_before_torch_is_imported(tmp_path, monkeypatch):
    (tmp_path / "conf" / "net").mkdir(parents=True)
    (tmp_path / "conf" / "net" / "mine.yaml").write_text("_target_: os.getcwd\n")
    monkeypatch.chdir(tmp_path)
    [said] = told([["algo=allreduce", "net=mine"]])
    assert said.startswith("without: net: str is no netsim.conditions.condition.NetworkCondition: ")


def test_whoever_has_all_that_a_task_needs_is_one(plan_with):
    assert isinstance(plan_with("task", f"{__name__}.Delegate").task, Delegate)


def test_every_group_has_a_kind_and_asks_for_nothing_that_its_class_has_not():
    kinds = {*BASES, *PROTOCOLS}
    assert {kind for kind in kinds if "." not in kind} == {*GROUPS} - {"schedule"}
    for name in BASES.values():
        assert isinstance(get_class(name), type)
    for name, needed in PROTOCOLS.values():
        kind = get_class(name)
        own = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
        assert {*needed} <= own | {*dir(kind)} | {*inspect.get_annotations(kind)}
