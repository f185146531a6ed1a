import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, top_k_accuracy_score
from torch import nn

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import SingleModel, StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.tasks.base import PADDING, Split
from experiments.tasks.target import LOWER_IS_BETTER, Target
from experiments.training import evaluation, train
from experiments.training.evaluation import Evaluation, evaluate
from experiments.training.result import DivergedError
from experiments.training.step import make_step
from tests.bagua_algos.recorder import Recorder

WORKERS, EXAMPLES = 3, 7  # shards of 3, 2 and 2


def images():
    chance = np.random.default_rng(0)
    x = chance.integers(256, size=(EXAMPLES, 28, 28), dtype=np.uint8)
    return Split(x, chance.integers(10, size=EXAMPLES))


def texts():
    chance = np.random.default_rng(0)
    x = chance.integers(81, size=(EXAMPLES, 6), dtype=np.uint8)
    return Split(x, chance.integers(81, size=(EXAMPLES, 6)))


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (images(), ("task=mnist5k", "model=mlp", "model.hidden=[16]")),
        (texts(), ("task=jane_austen", "model=char_transformer", "model.width=8")),
    ],
)
def test_accuracy_and_loss_are_means_over_all_labels(split, words, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 2)  # the second has one example, or only padding
    words = ["algo=allreduce", "backend=sim", f"workers={WORKERS}", *words]
    plan = make_plan(compose_config(words), tmp_path)
    communicator, model = StackedCommunicator(WORKERS), StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    distributed = make_step(plan, split, model, optimizer, communicator).distributed
    accuracy, loss, spread, score, own = evaluate(plan, split, distributed, communicator)
    assert score is None and own is None  # workers of all-reduce agree
    with torch.no_grad():
        outputs = plan.model.eval()(plan.task.inputs(torch.from_numpy(split.x)))
    y = torch.from_numpy(split.y)
    assert accuracy == pytest.approx((outputs.argmax(-1) == y).double().mean().item())
    expected = F.cross_entropy(outputs.flatten(0, -2), y.flatten()).item()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert spread == pytest.approx(0, abs=1e-6)
    distributed.close()


@pytest.mark.parametrize("make", [images, texts])
def test_every_metric_counts_uneven_shards_exactly(make, tmp_path, monkeypatch):
    """Beside scikit-learn's and PyTorch's, of all examples at once."""
    monkeypatch.setattr(evaluation, "BATCH", 2)
    split, task = make(), ("mnist5k" if make is images else "jane_austen")
    model = ("model=mlp", "model.hidden=[16]")
    if make is texts:
        model = ("model=char_transformer", "model.width=8")
    words = ["algo=allreduce", "backend=sim", f"workers={WORKERS}", f"task={task}", *model]
    plan = make_plan(compose_config(words), tmp_path)
    communicator, stacked = StackedCommunicator(WORKERS), StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(stacked.parameters())
    distributed = make_step(plan, split, stacked, optimizer, communicator).distributed
    with torch.no_grad():
        outputs = plan.model.eval()(plan.task.inputs(torch.from_numpy(split.x)))
    y, said = split.y, outputs.argmax(-1).numpy()
    num_classes = outputs.shape[-1]
    loss = F.cross_entropy(outputs.flatten(0, -2), torch.from_numpy(y).flatten()).item()
    expected = {
        "loss": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": loss / math.log(2),
        "exact_match": (said == y).reshape(EXAMPLES, -1).all(1).mean(),
        "top_5": top_k_accuracy_score(
            y.ravel(), outputs.flatten(0, -2), k=5, labels=np.arange(num_classes)
        ),
        "f1": f1_score(
            *(y.ravel(), said.ravel()),
            labels=np.arange(num_classes),
            average="macro",
            zero_division=0,
        ),
    }
    of_texts = {"word_error_rate"}  # tests/experiments/tasks/own/test_metrics_of_texts.py
    assert {*expected, "accuracy"} | of_texts == set(LOWER_IS_BETTER)
    with pytest.raises(ValueError, match=r"word_error_rate is of texts: .* task\.decode"):
        replace(plan, target=Target(metric="word_error_rate"))
    if make is images:
        del expected["bits_per_byte"]
        with pytest.raises(ValueError, match="labels of task=mnist5k are no bytes"):
            replace(plan, target=Target(metric="bits_per_byte"))
    for metric, value in expected.items():
        aimed = replace(plan, target=Target(metric=metric))
        found = evaluate(aimed, split, distributed, communicator)
        assert found.value == found.score == pytest.approx(value, rel=1e-5), metric
    distributed.close()


LENGTHS = np.array([30, 12, 42, 6, 36, 18, 24])
# Three workers have 6, 24 and 30; 12 and 36; 18 and 42. Where there is none stands the last one.
WIDTHS = {1: sorted(LENGTHS), 3: [18, 42, 30], 9: [42]}


@pytest.mark.parametrize("workers", WIDTHS)
def test_batches_that_are_cut_come_to_the_same(workers, tmp_path):
    """Each is as long as its longest example, and every example counts once, whoever has it."""
    chance, widths, found = np.random.default_rng(0), [], []
    x = chance.integers(1, 999, size=(EXAMPLES, 48), dtype=np.int32)
    x[np.arange(48) >= LENGTHS[:, None]] = 0
    split = Split(x, chance.integers(2, size=EXAMPLES))
    common = ["task=movie_snippets", "model=fast_text", "algo=allreduce", "backend=sim"]
    for crop in (False, True):
        words = [*common, f"workers={workers}", f"data.sampler.crop={crop}"]
        plan = make_plan(compose_config(words), tmp_path)
        communicator, stacked = StackedCommunicator(workers), StackedModel(plan.model, workers)
        optimizer = plan.make_optimizer(stacked.parameters())
        distributed = make_step(plan, split, stacked, optimizer, communicator).distributed
        hook = stacked.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[2]))
        found.append(evaluate(plan, split, distributed, communicator))
        hook.remove()
        distributed.close()
    assert widths == [48, *WIDTHS[workers]]
    whole, cut = found
    assert cut.accuracy == whole.accuracy
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize(("workers", "right", "examples"), [(11, 850, 1000), (15, 490, 500)])
@pytest.mark.parametrize("metric", ["accuracy", "exact_match"])
def test_a_target_that_is_exactly_reached_is(metric, workers, right, examples, tmp_path):
    words = ["algo=allreduce", "backend=sim", f"workers={workers}", "task=mnist5k", "model=mlp"]
    plan = make_plan(compose_config([*words, "model.hidden=[2]"]), tmp_path)
    plan = replace(plan, target=Target(metric=metric, value=right / examples))
    communicator, model = StackedCommunicator(workers), StackedModel(plan.model, workers)
    x = np.zeros((examples, 28, 28), np.uint8)
    said = plan.model.eval()(plan.task.inputs(torch.from_numpy(x[:1]))).argmax().item()
    split = Split(x, np.where(np.arange(examples) < right, said, (said + 1) % 10))
    optimizer = plan.make_optimizer(model.parameters())
    distributed = make_step(plan, split, model, optimizer, communicator).distributed
    found = evaluate(plan, split, distributed, communicator)
    distributed.close()
    assert found.value == right / examples and plan.target.is_reached(found.value)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_workers_that_differ_are_scored_as_they_are_too(metric, tmp_path):
    """Each on its shard: of examples r, r + 3, ... for worker r."""
    words = ["algo=local_sgd", "task=mnist5k", "model=mlp", "backend=sim", f"workers={WORKERS}"]
    plan = make_plan(compose_config([*words, "model.hidden=[16]"]), tmp_path)
    plan = replace(plan, target=Target(metric=metric))
    communicator, model = StackedCommunicator(WORKERS), StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    split = images()
    distributed = make_step(plan, split, model, optimizer, communicator).distributed
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    x = plan.task.inputs(torch.from_numpy(split.x))
    model.eval()
    with torch.no_grad():
        outputs = torch.stack([model(x.expand(WORKERS, *x.shape))[i % 3, i] for i in range(7)])
    model.train()
    y = torch.from_numpy(split.y)
    expected = (outputs.argmax(1) == y).double().mean()
    expected = F.cross_entropy(outputs, y) if metric == "loss" else expected
    found = evaluate(plan, split, distributed, communicator)
    assert found.own == pytest.approx(expected.item(), rel=1e-5)
    assert found.value != pytest.approx(found.own, rel=1e-3)
    assert all(map(torch.equal, before, model.parameters()))
    distributed.close()
    alone = make_plan(compose_config([*words[:-1], "workers=1", "model.hidden=[16]"]), tmp_path)
    single, one = StackedCommunicator(1), StackedModel(alone.model, 1)
    step = make_step(alone, split, one, alone.make_optimizer(one.parameters()), single)
    assert evaluate(alone, split, step.distributed, single).own is None
    step.distributed.close()


def test_what_is_averaged_by_something_else_does_not_touch_the_network(tmp_path):
    words = ["algo=local_sgd", "task=mnist5k", "model=mlp", "backend=sim", f"workers={WORKERS}"]
    plan = make_plan(compose_config(words), tmp_path)
    network, aside = Recorder(), Recorder()
    communicator, model = StackedCommunicator(WORKERS, network), StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    distributed = make_step(plan, images(), model, optimizer, communicator).distributed
    network.operations.clear()
    evaluate(plan, images(), distributed, StackedCommunicator(WORKERS, aside))
    distributed.close()
    assert network.operations == []
    assert {operation.name for operation in aside.operations} == {"all_reduce_mean", "broadcast"}


def test_what_an_evaluation_waits_for_is_no_communication_of_training():
    distributed = SimpleNamespace(exposed_communication_s=2.0)
    with train._uncounted(distributed):
        distributed.exposed_communication_s += 0.5
    assert distributed.exposed_communication_s == 2.0


def evaluated(words, found, folder, monkeypatch):
    """A training's evaluation that comes to `found`."""
    monkeypatch.setattr(train, "evaluate", lambda *_, **__: found)
    plan = make_plan(compose_config(["algo=allreduce", "backend=sim", *words]), folder)
    state = SimpleNamespace(take_step=SimpleNamespace(distributed=SimpleNamespace()))
    state.take_step.distributed.exposed_communication_s = 0.0
    rows = SimpleNamespace(state=state, on_progress=lambda: None)
    unused: Any = None
    training = train._Training(plan, unused, unused, rows, scores_own=True)
    return training.evaluate(images(), 3, "test")


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("is_of_classes", [True, False])
def test_a_loss_that_is_not_finite_is_no_result(is_of_classes, loss, tmp_path, monkeypatch):
    words = ("task=mnist5k", "model=mlp") if is_of_classes else POINTS
    found = Evaluation(0.1 if is_of_classes else math.nan, loss, 0.0)
    with pytest.raises(DivergedError, match=f"the loss on the test set is {loss} after step 3"):
        evaluated(words, found, tmp_path, monkeypatch)


def test_a_split_without_labels_has_no_loss_and_says_nothing_of_the_model(tmp_path, monkeypatch):
    words = ("task=mnist5k", "model=mlp", "model.hidden=[2]", "workers=1")
    plan = make_plan(compose_config(["algo=allreduce", "backend=sim", *words]), tmp_path)
    split = replace(images(), y=np.full(EXAMPLES, PADDING))
    model = StackedModel(plan.model, 1)
    communicator = StackedCommunicator(1)
    optimizer = plan.make_optimizer(model.parameters())
    distributed = make_step(plan, split, model, optimizer, communicator).distributed
    found = evaluate(plan, split, distributed, communicator)
    distributed.close()
    assert math.isnan(found.accuracy) and math.isnan(found.loss)
    assert evaluated(words, found, tmp_path, monkeypatch) is found


class Modes(nn.Module):
    """Notes in which modes its parts are when it is called."""

    def __init__(self, layer, seen):
        super().__init__()
        self.layer, self.seen = layer, seen
        self.trained = nn.Dropout()
        self.frozen = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()).eval()

    def forward(self, x_wb):
        self.seen.append(modes(self))
        if len(self.seen) == self.fails_at:
            raise RuntimeError("as a model may")
        return self.layer(x_wb)

    fails_at = 0


def modes(model):
    return [part.training for part in model.modules()]


MADE = "tests.experiments.tasks.own.made"
POINTS = (
    *("task=dataset", f"task.train._target_={MADE}.Points", "task.loss=mse_loss"),
    *(f"task.validation._target_={MADE}.Points", "model._target_=torch.nn.Linear"),
    *("model.in_features=4", "model.out_features=1"),
)


@pytest.mark.parametrize("words", [("task=mnist5k", "model=mlp"), POINTS])
def test_every_part_keeps_the_mode_in_which_its_constructor_left_it(words, tmp_path):
    """Such as a BatchNorm that a user has frozen."""
    words = ["algo=local_sgd", "backend=sim", f"workers={WORKERS}", *words]
    plan = make_plan(compose_config(words), tmp_path)
    split = images() if "task=mnist5k" in words else plan.task.load().validation
    model = SingleModel(Modes(StackedModel(plan.model, WORKERS), seen := []))
    model.forward = model.module.forward
    before = modes(model)
    assert any(before) and not all(before)
    measure = partial(
        evaluation._of_loss if plan.task.num_classes is None else evaluation._of_classes,
        *(plan, split, model, StackedCommunicator(WORKERS), lambda: None),
    )
    measure()
    assert len(seen) > 0 and not any(map(any, seen)) and modes(model) == before
    model.module.fails_at = len(seen) + 1
    with pytest.raises(RuntimeError, match="as a model may"):
        measure()
    assert modes(model) == before


def test_a_model_that_comes_in_evaluation_mode_is_evaluated_and_stays_there(tmp_path):
    words = ["algo=allreduce", "task=mnist5k", "model=mlp", "backend=sim", f"workers={WORKERS}"]
    plan = make_plan(compose_config(words), tmp_path)
    communicator, model = StackedCommunicator(WORKERS), StackedModel(plan.model.eval(), WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    distributed = make_step(plan, images(), model, optimizer, communicator).distributed
    evaluate(plan, images(), distributed, communicator)
    distributed.close()
    assert model.training and not any(modes(model.module))
