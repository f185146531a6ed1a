"""Inputs that are dictionaries, from the Dataset to the evaluation."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import WAYS
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.runs.run import load_data, run
from experiments.runs.summary import read_summary
from experiments.tasks.base import PADDING
from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.splits import DatasetSplit
from experiments.training.evaluation import evaluate
from experiments.training.step import make_step
from host.errors import UserError
from tests.experiments.tasks.own.made import Sentences
from tests.experiments.training.stacked import rows_of

MADE = "tests.experiments.tasks.own.made"
SENTENCES = (
    *("algo=allreduce", "task=dataset", f"task.train._target_={MADE}.Sentences", "net=none"),
    *(f"task.validation._target_={MADE}.Sentences", "task.validation.seed=1", "optim.lr=0.5"),
    *(f"model._target_={MADE}.MeanOfWords", "workers=3", "batch_size=4", "max_steps=6"),
)
OF_PLACES = ("task.train.labels=places", "task.validation.labels=places", "task.num_classes=10",
             "model.num_classes=10", "model.each=true")  # fmt: skip


def losses(rows):
    return [row.validation_loss for row in rows if row.is_evaluation]


def test_workers_of_all_kinds_learn_the_same_from_dictionaries(tmp_path):
    words = [*SENTENCES, "eval_every=3", "accumulate=2", "data.partition=dirichlet"]
    words += ["data.alpha=10"]
    of_real = ["backend=gloo", "data.loaders=2", "trace=true"]
    assert run(compose_config([*words, *of_real]), tmp_path) == "completed"
    rows = load_rows(tmp_path)
    real = losses(rows)
    assert real[-1] < real[0]
    waited_s = [row.data_wait_s for row in rows]
    assert waited_s == sorted(waited_s) and 0 < waited_s[-1] <= rows[-1].time_s
    assert read_summary(tmp_path).data_wait_s > 0
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    waits = [event for event in trace if event["name"] == "data"]
    assert len(waits) == 3 * 6 * 2  # workers, steps, micro-batches
    for way in WAYS:
        assert losses(rows_of(words, tmp_path, way)) == pytest.approx(real, rel=1e-5)
    rounded = losses(rows_of([*words, "precision=bfloat16"], tmp_path))
    assert rounded == pytest.approx(real, rel=2e-2) and rounded != pytest.approx(real, rel=1e-5)


def test_places_without_a_label_count_in_no_mean(tmp_path):
    words = [*OF_PLACES, "task.shift_labels=true", "task.validation.size=7", "backend=sim"]
    plan = make_plan(compose_config([*SENTENCES, *words]), tmp_path)
    data = plan.task.load()
    model, workers = StackedModel(plan.model, 3), StackedCommunicator(3)
    step = make_step(plan, data.train, model, torch.optim.SGD(model.parameters()), workers)
    found = evaluate(plan, data.validation, step.distributed, workers)
    step.distributed.close()
    own = Sentences(7, seed=1, labels="places")
    outputs = plan.model(own.ids, own.mask.long())[:, :-1]
    labels = own.ids[:, 1:].where(own.mask[:, 1:], -100)
    expected = F.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    right = (outputs.argmax(-1) == labels).sum() / (labels >= 0).sum()
    assert math.isclose(found.accuracy, right.item(), rel_tol=1e-6)


def test_labels_that_only_need_copying_are_refused(tmp_path):
    plan = make_plan(compose_config([*SENTENCES, *OF_PLACES, "backend=sim"]), tmp_path)
    with pytest.raises(UserError, match=r"give task\.shift_labels=true"):
        load_data(plan)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_class_numbers_of_any_type_have_room_for_places_without_a_label(dtype):
    bytes_b = torch.tensor([[0, 156, 255], [1, 2, 3]]).to(dtype)
    items = [{"input_ids": own.long(), "labels": own} for own in bytes_b]
    expected = torch.cat([bytes_b[:, 1:].long(), torch.full((2, 1), -1)], 1)
    split = DatasetSplit(items, num_classes=256, shift_labels=True)
    _, y_wb = split.batch(np.array([[0, 1]]))
    assert y_wb.dtype == torch.int64 and torch.equal(y_wb[0], expected)


def test_class_numbers_that_are_floats_are_class_numbers():
    items = [(torch.zeros(1), np.float32(label)) for label in (1, 0, -100, 0.5)]
    split = DatasetSplit(items, num_classes=2)
    _, y_wb = split.batch(np.array([[0, 1, 2]]))
    assert y_wb.dtype == torch.int64 and y_wb.tolist() == [[1, 0, PADDING]]
    with pytest.raises(UserError, match=r"^list has a label 0\.5, and class numbers are whole: "):
        split.batch(np.array([[1, 3]]))
    _, y_wb = DatasetSplit(items).batch(np.array([[0, 3]]))
    assert y_wb.dtype == torch.float32 and y_wb.tolist() == [[1, 0.5]]


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(label):
    """Of places without a label there is one number, which is torch's."""
    items = [(torch.zeros(1), torch.tensor([own, 1])) for own in (label, -100)]
    with pytest.raises(UserError, match=f"has a label {label}, and its 2 classes .* from 0: "):
        DatasetSplit(items, num_classes=2).batch(np.array([[0]]))
    _, y_wb = DatasetSplit(items, num_classes=2).batch(np.array([[1]]))
    assert y_wb.tolist() == [[[PADDING, 1]]]
    _, y_wb = DatasetSplit(items).batch(np.array([[0, 1]]))
    assert y_wb.tolist() == [[[label, 1], [-100, 1]]]


def test_signs_are_no_classes():
    """Their loss would leave out one class, and everything that is guessed would be right."""
    items = [(torch.zeros(1), label) for label in (-1, 1)]
    signs = Listed(items, targets=[-1, 1])
    data = DatasetTask(train=signs, validation=signs).load()
    with pytest.raises(UserError, match=r"Listed has a label -1, .* classes are numbered from 0"):
        data.train.batch(np.array([[0]]))


class Listed(list):
    """Examples that tell their classes."""

    def __init__(self, items, targets):
        super().__init__(items)
        self.targets = targets


def test_a_model_of_transformers_takes_dictionaries(tmp_path):
    pytest.importorskip("transformers", reason="the extra text is not installed")
    words = [
        "model._target_=transformers.BertForSequenceClassification",
        *("model.config._target_=transformers.BertConfig", "model.config.num_labels=2"),
        *("model.config.hidden_size=8", "model.config.num_hidden_layers=1"),
        *("model.config.num_attention_heads=2", "model.config.intermediate_size=8"),
        *("model.config.vocab_size=10", "backend=sim"),
    ]
    plan = make_plan(compose_config([*SENTENCES, *words]), tmp_path)
    data = load_data(plan)
    x_wb, y_wb = data.train.batch(np.arange(6).reshape(3, 2))
    stacked = StackedModel(plan.model.eval(), 3)
    stacked.eval()
    with pytest.raises(RuntimeError, match="data-dependent"):
        stacked(x_wb)
    stacked.stacking = type(stacked.stacking)(way="loop", threads=1)
    expected = plan.model(**{name: part.flatten(0, 1) for name, part in x_wb.items()})
    torch.testing.assert_close(stacked(x_wb).flatten(0, 1), expected)
    assert y_wb.shape == (3, 2)
