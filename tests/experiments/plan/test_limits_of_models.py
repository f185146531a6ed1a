"""The table of which model takes which task's examples, beside trials of all pairs."""

import inspect
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from torch import nn

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.limits.of_models import (
    CLASSES,
    FITTING,
    NUM_CLASSES,
    NUM_OUTPUTS,
    check_model_of_task,
)
from experiments.plan.messages import choices
from experiments.plan.model_check import check_model
from experiments.plan.part import make_part
from experiments.plan.plan import Plan
from experiments.tasks.base import Split, TaskData
from host.conf import PACKAGED
from host.errors import UserError
from tests.experiments.plan.small_tasks import own_words
from tests.experiments.plan.told import told

STORED = {
    "mnist5k": (np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.int64)),
    "fashion_mnist": (np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.int64)),
    "movie_snippets": (np.full((3, 48), 101, np.int16), np.zeros(3, np.int64)),
    "movie_states": (np.ones((3, 48, 384), np.float16), np.zeros(3, np.int64)),
    "spoken_digits": (np.ones((3, 92, 14), np.float32), np.zeros(3, np.int64)),
    "jane_austen": (np.zeros((3, 128), np.uint8), np.zeros((3, 128), np.int64)),
}
"""Examples in the form in which a task keeps them, whose data would have to be fetched."""

LARGE = {"vgg16": 224}
"""Models that take pictures of one size alone."""

SMALL = {"bert_base": ["model.size=tiny"], "resnet18": ["model.width=2"]}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    pytest.importorskip("transformers", reason="the extra text is not installed")
    return own_words(tmp_path_factory.mktemp("tasks"))


def with_model(task_words: list[str], model_words: list[str]):
    words = ["algo=allreduce", "net=none", *task_words, *model_words]
    return compose_config(words)


def outputs(model: str, number: int, own_task: str) -> list[str]:
    """Overrides that give a model so many outputs."""
    if model == "gpt2_small":
        return [f"model.vocabulary={max(number, 256)}" if own_task == "text" else
                f"model.vocabulary={number}"]  # fmt: skip
    if model == "bert_base":
        return ["model.head=answers" if own_task == "squad" else "model.head=classes",
                f"model.num_classes={number}"]  # fmt: skip
    return [f"++model.num_classes={number}"]


def names_of(task: str, own: dict[str, list[str]]) -> list[str]:
    return [f"task={task}", *own.get(task, [])]


@pytest.fixture(scope="module")
def planned(own):
    """The plan of a task, whose pictures are of a size, and its data; made once for all models."""

    @cache
    def of(task: str, size: int) -> tuple[Plan, TaskData]:
        sized = [f"task.size={size}"] if task == "image_folder" else []
        plan = make_plan(with_model([*names_of(task, own), *sized], ["model=mlp"]), Path("unused"))
        split = Split(*STORED[task]) if task in STORED else None
        return plan, plan.load_data() if split is None else TaskData(split, split, split)

    return of


@pytest.fixture
def weights_of_ones(monkeypatch):
    """Nobody looks at weights here, and to draw those of large models takes seconds."""
    for name in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: nn.init.ones_(tensor))


@pytest.mark.usefixtures("weights_of_ones")
@pytest.mark.parametrize("model", CLASSES)
def test_a_model_takes_the_examples_of_the_tasks_that_are_said(model, own, planned):
    trained = {}
    for task in [*STORED, *own]:
        plan, data = planned(task, LARGE.get(model, 32) if task == "image_folder" else 0)
        number = plan.task.num_classes
        given = [f"model={model}", *SMALL.get(model, []), *outputs(model, number, task)]
        key = " ".join(given)
        if key not in trained:
            trained[key] = make_part(with_model([], given).model, "model")
        taken = True
        try:
            check_model(replace(plan, model=trained[key]), data)
        except UserError:
            taken = False
        target = f"{type(plan.task).__module__}.{type(plan.task).__name__}"
        assert taken == (model in [choice.split()[0] for choice in FITTING[target]]), task


def test_every_packaged_choice_is_known():
    def targets(group: str) -> set[str]:
        found = [OmegaConf.load(PACKAGED / group / f"{name}.yaml") for name in choices(group)]
        return {str(node._target_) for node in found if not OmegaConf.is_missing(node, "_target_")}

    assert targets("model") == set(CLASSES.values())
    assert targets("task") - set(FITTING) == {"experiments.tasks.own.dataset.dataset_task"}
    for name, target in CLASSES.items():
        assert OmegaConf.load(PACKAGED / "model" / f"{name}.yaml")._target_ == target


def test_numbers_of_classes_and_outputs_are_those_of_the_classes():
    for target, number in NUM_CLASSES.items():
        assert get_object(target).num_classes == number
    for target, number in NUM_OUTPUTS.items():
        assert inspect.signature(get_object(target)).parameters["num_classes"].default == number
    assert set(NUM_CLASSES) < set(FITTING) and set(NUM_OUTPUTS) < set(CLASSES.values())


def test_a_task_that_makes_other_examples_takes_any_model():
    words = ["algo=allreduce", "task=speech_commands", "task.root=x", "model=bigru"]
    with pytest.raises(UserError, match="choose model=resnet18 or resnet50, or one of your own"):
        check_model_of_task(compose_config(words))
    check_model_of_task(compose_config([*words, "+task.collate=own"]))


REFUSED = [
    (["task=jane_austen"], "model=cnn does not take examples of task=jane_austen: choose model="),
    (["task=movie_states", "model=minilm"], "choose model=minilm_top, or one of your own"),
    (["task=movie_snippets", "model=minilm_top"], "choose model=minilm or fast_text or bert_base"),
    (["task=mnist5k", "model=bigru"], "choose model=cnn or mlp, or one of your own"),
    (["task=mnist5k", "+model.num_classes=7"], "give model.num_classes=10"),
    (["model=resnet18", "task=cifar100", "task.root=x"], "give model.num_classes=100"),
    (["task=text", "task.path=x", "model=char_transformer"], "give +model.num_classes=256"),
    (["task=jane_austen", "model=gpt2_small"], "give model.vocabulary=81"),
]
TAKEN = [
    ["task=mnist5k", "model._target_=torch.nn.Flatten"],
    ["task=spoken_digits", "model=bigru"],
]
TAKEN_WITH_TRANSFORMERS = [
    ["task=movie_snippets", "model=bert_base", "model.head=answers"],  # its shapes tell
    ["task=jane_austen", "model=gpt2_small", "model.vocabulary=81"],
]


def test_a_model_of_other_examples_is_told_before_torch_is_imported():
    has_transformers = find_spec("transformers") is not None
    taken = TAKEN + TAKEN_WITH_TRANSFORMERS * has_transformers
    lines = told([["algo=allreduce", *words] for words in [*(w for w, _ in REFUSED), *taken]])
    for line, (_, sentence) in zip(lines, REFUSED, strict=False):
        assert line.startswith("without: ") and sentence in line
    assert lines[len(REFUSED) :] == ["without: taken"] * len(taken)
