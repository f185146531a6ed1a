from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.tasks.base import PADDING
from experiments.tasks.batches import Batches
from experiments.tasks.own.dataset import DatasetTask
from experiments.training.step import clip_norms_, make_step
from tests.experiments.tasks.own.test_dictionaries import OF_PLACES, SENTENCES

WORKERS = 3


class Training:
    """Simulated workers, by plan."""

    def __init__(self, folder, *overrides, every_labelled=1):
        words = ["algo=allreduce", "model=mlp", "model.hidden=[16]", f"workers={WORKERS}"]
        self.plan = make_plan(compose_config([*words, "backend=sim", *overrides]), folder)
        train = self.plan.task.load().train
        train = replace(train, y=np.where(np.arange(len(train)) % every_labelled, PADDING, train.y))
        communicator = StackedCommunicator(WORKERS)
        self.model = StackedModel(self.plan.model, WORKERS)
        optimizer = self.plan.make_optimizer(self.model.parameters())
        self.take_step = make_step(self.plan, train, self.model, optimizer, communicator)
        self.batches = Batches(
            num_examples=len(train),
            world_size=WORKERS,
            ranks=communicator.ranks,
            batch_size=self.plan.batch_size,
            seed=0,
        )

    def run(self, num_steps):
        return [
            self.take_step(self.batches.indices(step)).mean().item() for step in range(num_steps)
        ]

    @property
    def weights(self):
        return torch.cat([p.detach().flatten(1) for p in self.model.parameters()], 1)


def without_batch_norm(model):
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()


def test_micro_batches_sum_up_to_the_batch(tmp_path):
    whole, cut = Training(tmp_path), Training(tmp_path, "accumulate=4")
    for training in (whole, cut):
        without_batch_norm(training.model)  # it sees a micro-batch at a time
    assert whole.run(3) == pytest.approx(cut.run(3), rel=1e-4)
    torch.testing.assert_close(whole.weights, cut.weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_micro_batches_sum_up_to_the_batch_where_few_examples_have_labels(precision, tmp_path):
    """Some micro-batches have none."""
    words = ["model=mlp_layer_norm", f"precision={precision}"]
    whole = Training(tmp_path, *words, every_labelled=5)
    cut = Training(tmp_path, *words, "accumulate=8", every_labelled=5)
    rel = 1e-4 if precision == "float32" else 1e-2
    assert whole.run(3) == pytest.approx(cut.run(3), rel=rel)
    torch.testing.assert_close(whole.weights, cut.weights, rtol=0, atol=rel / 10)


def stepped(folder, *words):
    """Three workers of a user's Dataset of sentences, after a step on their batches of 6: the
    losses, and the weights.
    """
    words = [*SENTENCES, "backend=sim", "batch_size=6", *words]
    plan = make_plan(compose_config(words), folder)
    train = plan.task.load().train
    torch.manual_seed(0)
    model = StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    step = make_step(plan, train, model, optimizer, StackedCommunicator(WORKERS))
    losses_w = step(np.arange(18).reshape(WORKERS, 6))
    step.distributed.close()
    return losses_w, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("loaders", [0, 2])
def test_places_without_labels_do_not_change_what_micro_batches_sum_up_to(loaders, tmp_path):
    words = [*OF_PLACES, "task.shift_labels=true", f"data.loaders={loaders}"]
    whole, cut = (stepped(tmp_path, *words, f"accumulate={number}") for number in (1, 3))
    for ours, theirs in zip(cut, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_micro_batches_of_equally_many_labels_have_the_bits_of_their_mean(tmp_path, monkeypatch):
    counted = stepped(tmp_path, "accumulate=3")
    monkeypatch.setattr(DatasetTask, "averages_labels", False)
    for ours, theirs in zip(counted, stepped(tmp_path, "accumulate=3"), strict=True):
        assert torch.equal(ours, theirs)


def test_micro_batches_are_read_at_once_only_where_labels_have_to_be_counted(tmp_path):
    def counts(*words, **options):
        return Training(tmp_path, *words, **options).take_step.weighs_labels

    assert counts("accumulate=4", every_labelled=2)
    assert not counts("accumulate=4")
    assert not counts(every_labelled=2)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("algo", ["allreduce", "bytegrad", "choco_sgd", "local_sgd"])
def test_a_narrow_precision_learns_as_the_wide_one(algo, precision, tmp_path):
    wide = Training(tmp_path, f"algo={algo}").run(25)
    narrow = Training(tmp_path, f"algo={algo}", f"precision={precision}").run(25)
    assert narrow != wide
    assert sum(narrow[-5:]) == pytest.approx(sum(wide[-5:]), rel=0.1)


def test_a_step_that_overflows_is_taken_by_nobody(tmp_path):
    training = Training(tmp_path, "precision=float16", "schedule=cosine")
    before, rate = training.weights.clone(), training.take_step.schedule.get_last_lr()
    training.take_step.scaler.load_state_dict(
        training.take_step.scaler.state_dict() | {"scale": 2.0**60}
    )
    training.run(1)
    assert training.weights.equal(before)
    assert training.take_step.schedule.get_last_lr() == rate
    assert training.take_step.scaler.get_scale() == 2.0**59


def test_each_workers_gradient_is_clipped_as_torch_clips_one():
    torch.manual_seed(0)
    gradients = [torch.randn(WORKERS, 4, 2), torch.randn(WORKERS, 5)]
    stacked = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(stacked, gradients, strict=True):
        parameter.grad = gradient.clone()
    clip_norms_(torch.optim.SGD(stacked, lr=1), WORKERS, max_norm=3.5)
    for worker in range(WORKERS):
        alone = [nn.Parameter(torch.zeros_like(g[worker])) for g in gradients]
        for parameter, gradient in zip(alone, gradients, strict=True):
            parameter.grad = gradient[worker].clone()
        nn.utils.clip_grad_norm_(alone, 3.5)
        for ours, theirs in zip(stacked, alone, strict=True):
            torch.testing.assert_close(ours.grad[worker], theirs.grad)


def test_one_worker_s_gradients_are_clipped_in_any_order_of_their_dimensions():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last))
    weight.grad = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    scalar = nn.Parameter(torch.zeros(()))
    scalar.grad = torch.tensor(2.0)
    alone = [nn.Parameter(torch.zeros_like(p)) for p in (weight, scalar)]
    for parameter, own in zip(alone, (weight, scalar), strict=True):
        parameter.grad = own.grad.clone()
    clip_norms_(torch.optim.SGD([weight, scalar], lr=1), 1, max_norm=0.5)
    nn.utils.clip_grad_norm_(alone, 0.5)
    for parameter, own in zip(alone, (weight, scalar), strict=True):
        torch.testing.assert_close(own.grad, parameter.grad)


def test_the_schedule_and_the_scale_set_the_learning_rate(tmp_path):
    training = Training(tmp_path, "schedule=linear_warmup", "lr_scale=0.5", "optim.lr=0.2")
    assert training.take_step.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    training.run(20)
    assert training.take_step.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
