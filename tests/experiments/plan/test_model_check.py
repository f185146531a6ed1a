"""Examples are made here, in the form in which each task stores its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.model_check import check_model
from experiments.plan.plan import Plan
from experiments.tasks.base import Split, TaskData
from host.errors import UserError

STORED = {
    "mnist5k": (np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.int64)),
    "movie_snippets": (np.full((3, 48), 101, np.int16), np.zeros(3, np.int64)),
    "spoken_digits": (np.ones((3, 92, 14), np.float32), np.zeros(3, np.int64)),
    "jane_austen": (np.zeros((3, 128), np.uint8), np.zeros((3, 128), np.int64)),
}


def planned(task: str, model: str, *overrides: str) -> tuple[Plan, TaskData]:
    words = ["algo=allreduce", f"task={task}", f"model={model}", *overrides]
    split = Split(*STORED[task])
    return make_plan(compose_config(words), Path("unused")), TaskData(split, split, split)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        *(("mnist5k", "cnn"), ("mnist5k", "mlp")),
        *(("spoken_digits", "bigru"), ("jane_austen", "char_transformer")),
    ],
)
def test_a_model_that_fits_passes(task: str, model: str):
    check_model(*planned(task, model))


@pytest.mark.parametrize(
    ("task", "model", "inputs"),
    [
        ("movie_snippets", "cnn", r"int64 \[2, 48\]"),
        ("spoken_digits", "cnn", r"float32 \[2, 92, 14\]"),
        ("mnist5k", "bigru", r"float32 \[2, 1, 28, 28\]"),
        ("spoken_digits", "char_transformer", r"float32 \[2, 92, 14\]"),  # numbers, not characters
        ("movie_snippets", "char_transformer", r"int64 \[2, 48\]"),  # tokens beyond its characters
    ],
)
def test_a_model_of_other_inputs_is_refused(task: str, model: str, inputs: str):
    with pytest.raises(UserError, match=rf"^model={model} does not take .*task={task}") as refused:
        check_model(*planned(task, model))
    refused.match(rf"{inputs} \(.+\): choose a model that does; docs/tasks\.md")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("task", "model", "labels", "number"),
    [("mnist5k", "cnn", "2", 10), ("jane_austen", "char_transformer", "2, 128", 81)],
)
def test_a_wrong_number_of_classes_is_refused(task: str, model: str, labels: str, number: int):
    shapes = rf"makes float32 \[{labels}, 7\] of .* needs float \[{labels}, {number}\]"
    with pytest.raises(UserError, match=shapes) as refused:
        check_model(*planned(task, model, "+model.num_classes=7"))
    refused.match(rf"{number} outputs for each label, or give \+model\.num_classes={number}$")


class Returning(nn.Module):
    """Of one weight, for an optimizer to have something."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.value = value

    def forward(self, x: Tensor) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ((torch.zeros(2, 10),), "makes a tuple of"),
        (torch.zeros(2, 10, dtype=torch.int64), r"makes int64 \[2, 10\] of"),
        (AssertionError(), r"\(AssertionError\): choose"),
        (RuntimeError("A sentence.\nA trace"), r"\(A sentence\): choose"),
    ],
)
def test_whatever_a_model_does_is_said_in_one_line(value: object, complaint: str):
    plan, data = planned("mnist5k", "mlp")
    with pytest.raises(UserError, match=complaint):
        check_model(replace(plan, model=Returning(value)), data)


def test_a_model_with_nothing_to_train_is_refused():
    plan, data = planned("mnist5k", "mlp")
    with pytest.raises(UserError, match=r"^model=mlp has no parameter that requires a gradient"):
        check_model(replace(plan, model=plan.model.requires_grad_(False)), data)


class Disturbing(nn.Module):
    """Works in place and draws at all times; one part is not in training mode, the rest is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(14)
        self.frozen = nn.BatchNorm1d(14).eval()
        self.classifier = nn.Linear(14, 10)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mul_(2).mean(1)
        return self.classifier(self.frozen(self.norm(mean)) + torch.randn(14))


def test_a_trial_leaves_no_trace():
    plan, data = planned("spoken_digits", "bigru")
    torch.manual_seed(5)
    model = Disturbing()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    check_model(replace(plan, model=model), data)
    assert torch.get_rng_state().equal(drawn)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert (model.training, model.norm.training, model.frozen.training) == (True, True, False)
    assert (data.train.x == 1).all()
