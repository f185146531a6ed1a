"""Gradients of stacked workers in an engine: written where its buckets are, or left to autograd."""

import copy
import time

import pytest
import torch
from torch import nn

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.simulated.memory.live_bytes import LiveBytes

NUM_WORKERS = 3
WAYS = {
    "vmap": Stacking(way="vmap", threads=1),
    "parts": Stacking(way="parts", threads=2),
    "loop": Stacking(way="loop", threads=1),
    "shares": Stacking(way="shares", threads=2),
}


class Keeping(Algorithm):
    """Changes nothing, and notes the gradients of each bucket that is ready."""

    def __init__(self):
        self.seen = []

    def on_bucket_ready(self, context, bucket):
        self.seen.append(bucket.gradients[:, : bucket.numel].clone())


class ReadingLate(Keeping):
    """May look at the gradients of the last step when the next one begins."""

    def on_forward(self, context):
        self.late = [bucket.gradients.clone() for bucket in context.buckets]


class Unsent(Keeping):
    """Takes one backward pass a step, and keeps a part of the gradients."""

    takes_one_backward = keeps_unsent = True


class Net(nn.Module):
    """A layer used twice, one that is not by hand, one that nobody uses, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.twice, self.conv = nn.Linear(6, 6), nn.Conv1d(1, 2, 3, padding=1)
        self.unused, self.last = nn.Linear(6, 6), nn.Linear(12, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x_b):
        hidden = self.conv(self.twice(self.twice(x_b).tanh()).unsqueeze(1))
        return self.frozen(self.last(hidden.flatten(1)))


class Choosing(nn.Module):
    """Uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.takes_second = False

    def forward(self, x_b):
        return (self.second if self.takes_second else self.first)(x_b)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


@pytest.fixture
def hung():
    """Makes stacked workers with an engine, and lets go of them in the end."""
    engines = []

    def make(plain, way, algorithm=None, num_workers=NUM_WORKERS):
        model = StackedModel(plain, num_workers, stacking=WAYS[way])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = Engine(
            *(model, optimizer, algorithm or Keeping(), StackedCommunicator(num_workers)),
            bucket_bytes=200,
        )
        engines.append(engine)
        return model, optimizer, engine

    yield make
    for engine in engines:
        engine.close()


def squares(x_wb):
    """Losses, another of each worker."""

    def loss(model, rows):
        weights = torch.arange(1.0, 1.0 + len(x_wb))[rows]
        return model(x_wb[rows]).square().flatten(1).sum(1) * weights

    return loss


def expected(plain, x_wb, times=1.0):
    """Each worker's gradients by a model of its own; zeros where it uses nothing."""
    rows = []
    for number, x_b in enumerate(x_wb):
        own = copy.deepcopy(plain)
        (times * (1 + number) * own(x_b).square().sum()).backward()
        trained = [p for p in own.parameters() if p.requires_grad]
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
    return [torch.stack(own) for own in zip(*rows, strict=True)]


def gradients(model):
    return [p.grad for p in model.parameters() if p.requires_grad]


def are_in_buckets(engine):
    pairs = [
        pair
        for bucket in engine.context.buckets
        for pair in zip(bucket.parameters, bucket.gradient_views(), strict=True)
    ]
    return all(p.grad.data_ptr() == view.data_ptr() for p, view in pairs)


def close(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def close_where_used(found, wanted):
    """None where nobody has used a layer."""
    pairs = zip(found, wanted, strict=True)
    close([torch.zeros_like(g) if own is None else own for own, g in pairs], wanted)


@pytest.mark.parametrize("algorithm", [Keeping, ReadingLate])
@pytest.mark.parametrize("way", WAYS)
def test_they_are_each_workers_own_and_in_its_bucket(way, algorithm, hung):
    torch.manual_seed(0)
    plain, x_swb = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, optimizer, engine = hung(plain, way, algorithm())
    for x_wb in x_swb:
        optimizer.zero_grad()
        (2 * model(x_wb, squares(x_wb)).sum()).backward()
        close(gradients(model), expected(plain, x_wb, times=2.0))
        assert are_in_buckets(engine)
    assert len(engine.algorithm.seen) == 2 * len(engine.context.buckets) >= 4
    assert_seen(engine)


@pytest.fixture
def most_of(hung):
    """The most bytes that a pass takes, over those of all gradients."""

    def most(way, algorithm):
        layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
        model, _, _ = hung(layers, way, algorithm, num_workers=16)
        x_wb = torch.randn(16, 1, 64)
        with LiveBytes() as live:
            model(x_wb, squares(x_wb)).sum().backward()
        return live.most / (16 * 4 * 64 * 64 * 4)

    return most


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_made_anew_unless_somebody_may_read_the_last_ones(way, most_of):
    assert most_of(way, Keeping()) < 0.1
    assert most_of(way, ReadingLate()) > 0.9


def test_by_vmap_with_several_threads_they_are_left_to_autograd(most_of, monkeypatch):
    monkeypatch.setitem(WAYS, "vmap", Stacking(way="vmap", threads=2))
    assert most_of("vmap", Keeping()) > 0.2  # a layer at a time


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_is_told_apart_from_the_one_before(way, hung):
    model, optimizer, _ = hung(Net(), way, Unsent())
    x_wb = torch.randn(NUM_WORKERS, 4, 6)
    for _ in range(2):
        optimizer.zero_grad()
        model(x_wb, squares(x_wb)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    model(x_wb, squares(x_wb)).sum().backward()
    optimizer.zero_grad()  # in place of a step
    with pytest.raises(ValueError, match="thrown away"):
        model(x_wb, squares(x_wb)).sum().backward()


def test_where_a_pass_may_write_is_forgotten_with_the_pass(hung):
    model, _, _ = hung(Choosing(), "vmap")
    x_wb = torch.randn(NUM_WORKERS, 4, 6)
    model(x_wb, squares(x_wb)).sum().backward()
    model.module.takes_second = True
    second = model.module.second.weight
    (gradient,) = torch.autograd.grad(model(x_wb).sum(), second)
    assert gradient.any() and not second.grad.any()


@pytest.mark.parametrize("way", WAYS)
def test_passes_add_up(way, hung):
    torch.manual_seed(0)
    plain, (first, second) = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    both = [a + b for a, b in zip(expected(plain, first), expected(plain, second), strict=True)]
    for within in (engine.no_sync, torch.enable_grad):
        model.zero_grad()
        with within():
            model(first, squares(first)).sum().backward()
        model(second, squares(second)).sum().backward()
        close(gradients(model), both)
        assert are_in_buckets(engine)


def assert_seen(engine):
    """The algorithm has seen what is in the buckets."""
    buckets = engine.context.buckets
    for bucket, seen in zip(buckets, engine.algorithm.seen[-len(buckets) :], strict=True):
        assert seen.equal(bucket.gradients[:, : bucket.numel])
    assert are_in_buckets(engine)


@pytest.mark.parametrize("way", WAYS)
def test_two_forwards_may_have_one_backward(way, hung):
    torch.manual_seed(0)
    plain, (first, second) = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    (model(first, squares(first)).sum() + model(second, squares(second)).sum()).backward()
    both = [a + b for a, b in zip(expected(plain, first), expected(plain, second), strict=True)]
    close(gradients(model), both)
    assert_seen(engine)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_may_be_of_the_weights_too(way, hung):
    torch.manual_seed(0)
    plain, x_wb = Net(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    trained = [p for p in model.parameters() if p.requires_grad]
    penalty = sum(p.square().sum() for p in trained)
    (model(x_wb, squares(x_wb)).sum() + penalty).backward()
    wanted = expected(plain, x_wb)
    close(gradients(model), [g + 2 * p.detach() for g, p in zip(wanted, trained, strict=True)])
    assert_seen(engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_assigned", [True, False])
def test_what_is_there_by_then_is_added_to(way, is_assigned, hung):
    torch.manual_seed(0)
    plain, x_wb = Net(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    loss, weight = model(x_wb, squares(x_wb)).sum(), model.module.last.weight
    if is_assigned:
        weight.grad = torch.ones_like(weight)
    else:
        with engine.no_sync():
            weight.sum().backward()
    loss.backward()
    wanted = expected(plain, x_wb)
    wanted[-2] += 1
    close(gradients(model), wanted)
    assert_seen(engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["before the sum", "after the sum"])
def test_hooks_may_come_between_forward_and_backward(way, kind, hung):
    torch.manual_seed(0)
    plain, x_wb, heard = Net(), torch.randn(NUM_WORKERS, 4, 6), []
    model, _, engine = hung(plain, way)
    loss, weight = model(x_wb, squares(x_wb)).sum(), model.module.last.weight
    wanted = expected(plain, x_wb)
    if kind == "before the sum":
        weight.register_hook(lambda gradient: 3 * gradient)
        wanted[-2] *= 3
    else:
        weight.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad.clone()))
    loss.backward()
    close(gradients(model), wanted)
    close(heard, [wanted[-2]] * len(heard))
    assert len(heard) == (kind == "after the sum")
    assert_seen(engine)


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_may_go_between_forward_and_backward(way, hung):
    torch.manual_seed(0)
    plain, x_wb = Net(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    loss = model(x_wb, squares(x_wb)).sum()
    engine.close()
    loss.backward()
    close_where_used(gradients(model), expected(plain, x_wb))
    assert not engine.algorithm.seen


class Transposed(nn.Module):
    """Uses a square weight the other way round."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x_b):
        return nn.functional.linear(x_b, self.weight.t())


class Real(nn.Module):
    """Uses a part of a weight that has its address and its shape."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, x_b):
        return nn.functional.linear(x_b, self.weight.real)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6, dtype=torch.complex64)

    def forward(self, x_b):
        return torch.view_as_real(self.layer(x_b * (1 + 2j)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Transposed, Real, Complex])
def test_a_weight_may_be_used_in_another_way(way, kind, hung):
    torch.manual_seed(0)
    plain, x_wb = kind(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    model(x_wb, squares(x_wb)).sum().backward()
    close(gradients(model), expected(plain, x_wb))
    assert_seen(engine)


@pytest.mark.parametrize("way", ["parts", "shares"])
def test_an_error_of_one_worker_leaves_nobody_at_work(way, hung):
    """Else another one would write to the gradients of the next pass."""
    torch.manual_seed(0)
    plain, (first, second) = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)

    def failing(rows_model, rows):
        if rows.start == 0:
            raise ZeroDivisionError
        losses_w = squares(first)(rows_model, rows)
        time.sleep(0.2)
        return losses_w

    with pytest.raises(ZeroDivisionError):
        model(first, failing)
    model(second, squares(second)).sum().backward()
    wanted = expected(plain, second)
    close(gradients(model), wanted)
    time.sleep(0.3)
    close(gradients(model), wanted)
    assert_seen(engine)


@pytest.mark.parametrize("way", WAYS)
def test_one_gradient_that_is_thrown_away_is_noticed(way, hung):
    model, optimizer, _ = hung(nn.Linear(6, 2, bias=False), way, Unsent())
    x_wb = torch.randn(NUM_WORKERS, 4, 6)
    model(x_wb, squares(x_wb)).sum().backward()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="thrown away"):
        model(x_wb, squares(x_wb)).sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_without_a_backward_leaves_nothing(way, hung):
    torch.manual_seed(0)
    plain, (first, second) = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, _, _ = hung(plain, way)
    model(first, squares(first))
    assert gradients(model) == [None] * 8
    model(second, squares(second)).sum().backward()
    close(gradients(model), expected(plain, second))


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_comes_in_between_is_refused(way, hung):
    model, _, _ = hung(Net(), way)
    first, second = torch.randn(2, NUM_WORKERS, 4, 6)
    waiting = model(first, squares(first)).sum()
    model(second, squares(second)).sum().backward()
    with pytest.raises(ValueError, match=r"overwritten .* call backward\(\) before the next"):
        waiting.backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_scripts_hooks_see_and_change_them(way, hung):
    torch.manual_seed(0)
    plain, x_wb, heard = Net(), torch.randn(NUM_WORKERS, 4, 6), []
    model, _, engine = hung(plain, way)
    model.module.last.weight.register_hook(lambda gradient: 3 * gradient)
    model.module.last.bias.register_post_accumulate_grad_hook(
        lambda p: heard.append(p.grad.clone())
    )
    model(x_wb, squares(x_wb)).sum().backward()
    wanted = expected(plain, x_wb)
    close(heard, [wanted[-1]])
    wanted[-2] *= 3
    close(gradients(model), wanted)
    assert are_in_buckets(engine)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_of_gradients_is_refused_as_ever(way, hung):
    model, _, _ = hung(Net(), way)
    x_wb = torch.randn(NUM_WORKERS, 4, 6)
    with pytest.raises(ValueError, match="create_graph=True"):
        model(x_wb, squares(x_wb)).sum().backward(create_graph=True)


@pytest.mark.parametrize("way", WAYS)
def test_who_asks_for_gradients_is_given_them_and_no_hook_is_told(way, hung):
    torch.manual_seed(0)
    plain, (first, second) = Net(), torch.randn(2, NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    trained = [p for p in model.parameters() if p.requires_grad]
    loss = model(first, squares(first)).sum()
    asked = torch.autograd.grad(loss, trained[::-1], allow_unused=True)[::-1]
    assert gradients(model) == [None] * len(trained) and not engine.algorithm.seen
    model(second, squares(second)).sum().backward()
    close(gradients(model), expected(plain, second))
    close_where_used(asked, expected(plain, first))


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_for_some_inputs_is_for_them_alone(way, hung):
    torch.manual_seed(0)
    plain, x_wb = Net(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    last = [*model.module.last.parameters()]
    with engine.no_sync():
        model(x_wb, squares(x_wb)).sum().backward(inputs=last)
    wanted = expected(plain, x_wb)
    close([p.grad for p in last], wanted[-2:])
    assert gradients(model)[:-2] == [None] * (len(wanted) - 2)
    model.zero_grad()
    model(x_wb, squares(x_wb)).sum().backward(inputs=last)
    close(gradients(model), [*map(torch.zeros_like, wanted[:-2]), *wanted[-2:]])


@pytest.mark.parametrize("way", WAYS)
def test_without_an_engine_they_are_autograds(way, hung):
    torch.manual_seed(0)
    plain, x_wb = Net(), torch.randn(NUM_WORKERS, 4, 6)
    model, _, engine = hung(plain, way)
    engine.close()
    model(x_wb, squares(x_wb)).sum().backward()
    close_where_used(gradients(model), expected(plain, x_wb))
    assert all(own is None or own.is_contiguous() for own in gradients(model))
