"""Who computes stacked workers: which threads, by which model, and what is kept of it."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from bagua_algos.worker_axis.models import SingleModel, StackedModel
from bagua_algos.worker_axis.modes import evaluating, modes_of
from bagua_algos.worker_axis.stacking import WAYS, Stacking
from tests.bagua_algos.worker_axis.models import ByData, normed

IN_PARTS = ("parts", "loop", "shares")
NUM_WORKERS = 3


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


def stacked(model, way="vmap", threads=1):
    return StackedModel(model, NUM_WORKERS, stacking=Stacking(way=way, threads=threads))


def of_sums(x_wb):
    """Losses that are the sums of outputs."""
    return lambda rows_model, rows: rows_model(x_wb[rows]).flatten(1).sum(1)


class Witness(nn.Module):
    """Notes who computes it, and with what, each time two have come where they come in twos."""

    def __init__(self, together=1):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        Witness.seen, Witness.come = [], threading.Barrier(together, timeout=20)

    def forward(self, x_b):
        Witness.come.wait()
        who = threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()
        Witness.seen.append(who)
        return self.layer(x_b)


@pytest.mark.parametrize("way", ["parts", "shares"])
def test_side_by_side_each_of_the_threads_computes_with_itself_alone(way):
    model = StackedModel(Witness(together=2), 2, stacking=Stacking(way=way, threads=2))
    model(torch.ones(2, 4, 3))
    threads, numbers, _ = zip(*Witness.seen, strict=True)
    assert len({*threads, threading.get_ident()}) == 3
    assert numbers == (1, 1)


@pytest.mark.parametrize("way", ["parts", "shares"])
def test_side_by_side_other_threads_still_have_all_of_torchs(way):
    found = []
    stacked(nn.Linear(3, 2), way, threads=2)(torch.ones(NUM_WORKERS, 4, 3))
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert [*found, torch.get_num_threads()] == [2, 2]


def test_in_a_loop_the_callers_thread_computes_all_with_all_of_torchs():
    stacked(Witness(), "loop", threads=2)(torch.ones(NUM_WORKERS, 4, 3))
    assert Witness.seen == [(threading.get_ident(), 2, True)] * NUM_WORKERS


@pytest.mark.parametrize("way", IN_PARTS)
def test_nobody_computes_gradients_that_are_not_asked_for(way):
    model, x_wb = stacked(Witness(), way), torch.ones(NUM_WORKERS, 4, 3)
    with torch.no_grad():
        model(x_wb, of_sums(x_wb))
    assert not any(has_gradients for *_, has_gradients in Witness.seen)


@pytest.mark.parametrize("way", IN_PARTS)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_layer_may_be_frozen_and_another_thawed_between_steps(way, at_once):
    plain, x_wb = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(NUM_WORKERS, 4, 3)
    model, by_vmap = stacked(plain, way), stacked(plain)
    for trained in ([True, True], [True, False], [False, True], [True, True], [False, False]):
        for each in (model, by_vmap):
            each.zero_grad()
            for layer, is_trained in zip(each.module, trained, strict=True):
                layer.requires_grad_(is_trained)
            loss_w = each(x_wb, of_sums(x_wb) if at_once else None)
            assert loss_w.requires_grad == any(trained)
            if any(trained):
                loss_w.sum().backward()
        for ours, theirs in zip(model.parameters(), by_vmap.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


class Sized(nn.Module):
    """Notes how many workers are computed at once: vmap calls it once for all of them."""

    def __init__(self):
        super().__init__()
        self.layer, self.num_calls = nn.Linear(3, 2), 0
        Sized.calls = []

    def forward(self, x_b):
        self.num_calls += 1
        Sized.calls.append(self.num_calls)
        return self.layer(x_b)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["vmap", "parts"])
def test_without_gradients_few_workers_have_examples_in_memory_at_once(way, threads, monkeypatch):
    """To the same bits, and with the same numbers in Python."""
    model, x_wb = stacked(Sized(), way, threads), torch.randn(NUM_WORKERS, 4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        whole = model(x_wb)
    at_once = len(Sized.calls)
    assert at_once == (threads if way == "parts" else 1)
    monkeypatch.setattr("bagua_algos.worker_axis.rows.CHUNK", 4)
    Sized.calls.clear()
    with torch.no_grad():
        assert model(x_wb).equal(whole)
        assert model(x_wb).equal(whole)
    assert Sized.calls == [2] * NUM_WORKERS + [3] * NUM_WORKERS
    Sized.calls.clear()
    model(x_wb)
    assert Sized.calls == [4] * at_once


def test_how_workers_are_computed_is_told_and_may_change():
    model = stacked(ByData())
    for stacking in (Stacking(way="loop", threads=2), Stacking(way="shares", threads=1)):
        model.stacking = stacking
        assert model.stacking is stacking and torch.get_num_threads() == stacking.threads
        assert model(torch.ones(NUM_WORKERS, 4, 3)).shape == (NUM_WORKERS, 4, 2)


def test_the_model_of_one_worker_has_its_axis_in_front():
    model, x_b = nn.Linear(3, 2), torch.randn(4, 3)
    assert torch.equal(SingleModel(model)(x_b[None]), model(x_b)[None])


def test_while_workers_are_alike_one_model_computes_what_vmap_refuses():
    plain = ByData().eval()
    model, x_wb = stacked(plain).eval(), torch.randn(NUM_WORKERS, 4, 3)
    with model.alike():
        found = model(x_wb)
        with_loss = model(x_wb, lambda rows_model, rows: rows_model(x_wb[rows]))
    torch.testing.assert_close(found, plain(x_wb.flatten(0, 1)).unflatten(0, (NUM_WORKERS, 4)))
    assert with_loss.equal(found)
    with pytest.raises(RuntimeError, match="vmap"):
        model(x_wb)


def test_to_evaluate_is_for_a_while_and_modes_of_parts_come_back():
    model = normed()
    model[1].eval()
    before = modes_of(model)
    with evaluating(model):
        assert not any(modes_of(model))
    assert modes_of(model) == before == [True, True, False, True, True]


@pytest.mark.parametrize("way", WAYS)
def test_batch_norms_train_under_autocast_and_in_double_precision(way):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    x_wb = torch.randn(NUM_WORKERS, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = stacked(plain, way)(x_wb), plain(x_wb[0])
    torch.testing.assert_close(found[0].float(), expected.float(), rtol=0.05, atol=0.05)
    plain, x_wb = plain.double(), x_wb.double()
    torch.testing.assert_close(stacked(plain, way)(x_wb)[0], plain(x_wb[0]))


def test_a_model_that_is_moved_leaves_its_old_buffers_to_nobody():
    model = stacked(nn.Sequential(normed()))
    old = weakref.ref(model.module[0][1].running_mean)
    model.double()
    gc.collect()
    assert old() is None


@pytest.mark.parametrize("way", IN_PARTS)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
def test_losses_may_weigh_differently(way, at_once, weights):
    model, x_wb = stacked(nn.Linear(3, 2), way, threads=2), torch.randn(NUM_WORKERS, 4, 3)
    loss_w = model(x_wb, of_sums(x_wb)) if at_once else model(x_wb).flatten(1).sum(1)
    (torch.tensor(weights) * loss_w).sum().backward()
    expected = torch.tensor(weights)[:, None, None] * x_wb.sum(1, keepdim=True).expand(-1, 2, -1)
    torch.testing.assert_close(model.module.weight.grad, expected)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_second_backward_pass_of_parts_is_refused(at_once):
    model, x_wb = stacked(nn.Linear(3, 2), "loop"), torch.randn(NUM_WORKERS, 4, 3)
    loss_w = model(x_wb, of_sums(x_wb) if at_once else None).sum()
    loss_w.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="workers computed in parts have one backward pass"):
        loss_w.backward()


class Counted(nn.Module):
    """Counts the outputs that are there still, at each worker's backward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        Counted.outputs, Counted.living = [], []

    def forward(self, x_b):
        y_b = self.layer(x_b)
        Counted.outputs.append(weakref.ref(y_b))
        y_b.register_hook(
            lambda _: Counted.living.append(sum(y() is not None for y in Counted.outputs))
        )
        return y_b


def test_a_backward_pass_frees_the_outputs_of_each_worker_that_it_is_done_with():
    model = stacked(Counted(), "loop")
    model(torch.ones(NUM_WORKERS, 4, 3)).sum().backward()
    assert Counted.living == [3, 2, 1]


class Either(nn.Module):
    """Uses one of two layers, by its data."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x_b):
        return (self.first if x_b.sum() > 0 else self.second)(x_b)


@pytest.fixture
def empty_memory_is_nan():
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.mark.usefixtures("empty_memory_is_nan")
@pytest.mark.parametrize("way", ["loop", "shares"])
def test_a_worker_that_does_not_use_a_layer_has_gradients_of_0_there(way):
    model, x_wb = stacked(Either(), way), torch.ones(NUM_WORKERS, 4, 3)
    x_wb[1] *= -1
    model(x_wb).sum().backward()
    for layer, gradient_w in ((model.module.first, [4, 0, 4]), (model.module.second, [0, -4, 0])):
        expected = torch.tensor(gradient_w)[:, None, None].expand(-1, 2, 3).float()
        assert layer.weight.grad.equal(expected)
