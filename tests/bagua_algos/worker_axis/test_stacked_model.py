import copy
import threading

import pytest
import torch
from torch import nn

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.modes import evaluating
from bagua_algos.worker_axis.rows import Rows
from bagua_algos.worker_axis.stacking import Stacking
from experiments.predict.memory_traffic import MemoryTraffic
from host.processes import run_in_child
from tests.bagua_algos.worker_axis.models import ByData, TwoNames, normed, repeated

WAYS = {
    "loop": Stacking(way="loop", threads=1),
    "shares": Stacking(way="shares", threads=2),
    "parts": Stacking(way="parts", threads=2),
}


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


class Tied(nn.Module):
    """One weight in two places, one that is frozen, and one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x_b):
        return self.second(self.first(x_b).relu())


class Centred(nn.Module):
    """Gives its buffer another tensor at every training step."""

    def __init__(self):
        super().__init__()
        self.part, self.layer = nn.Module(), nn.Linear(3, 2)
        self.part.register_buffer("mean", torch.zeros(3))

    def forward(self, x_b):
        if self.training:
            self.part.mean = 0.9 * self.part.mean + 0.1 * x_b.mean(0)
        return self.layer(x_b - self.part.mean)


class Quantised(nn.Module):
    """One buffer of two modules, which one of them changes in place, and under two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.layer = nn.Module(), nn.Module(), nn.Linear(3, 3)
        self.encoder.register_buffer("book", torch.zeros(3))
        self.decoder.register_buffer("book", self.encoder.book)
        self.decoder.register_buffer("same", self.encoder.book)
        self.layer.again = self.layer.weight

    def forward(self, x_b):
        self.encoder.book += x_b.mean(0)
        return self.layer(x_b - self.decoder.book + self.decoder.same) @ self.layer.again


class Recurrent(nn.Module):
    """Computes with its buffer, and gives it another tensor then."""

    def __init__(self):
        super().__init__()
        self.layer, self.again = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("state", torch.ones(4))

    def forward(self, x_b):
        h_b = torch.tanh(self.layer(x_b) + self.again(self.state)) * self.state
        self.state = h_b.mean(0)
        return h_b


class Scaled(nn.Module):
    """Changes its buffer in place, and computes with it then."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x_b):
        self.scale += x_b.mean()
        return self.layer(x_b) * self.scale


class Caching(nn.Module):
    """Gives its buffer a tensor of another shape, or none."""

    def __init__(self, other):
        super().__init__()
        self.register_buffer("cache", torch.ones(1))
        self.layer, self.other = nn.Linear(3, 2), other

    def forward(self, x_b):
        self.cache = self.other
        return self.layer(x_b)


class Renaming(nn.Module):
    """Gives some of its buffer's names another tensor."""

    def __init__(self, *names):
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", self.first)
        self.layer, self.names = nn.Linear(3, 2), names

    def forward(self, x_b):
        other = self.second + x_b.mean(0)
        for name in self.names:
            setattr(self, name, other)
        return self.layer(x_b - self.first)


def square(outputs_wb, rows=slice(None)):
    """Another loss for each worker, so that a mixed-up row is seen."""
    weights_w = torch.arange(1.0, 4.0)[rows]
    return outputs_wb.float().square().flatten(1).sum(1) * weights_w


def gradients_of(model, x_wb, *, at_once):
    if at_once:
        loss_w = model(x_wb, lambda rows_model, rows: square(rows_model(x_wb[rows]), rows))
    else:
        loss_w = square(model(x_wb))
    (2 * loss_w.sum()).backward()
    return loss_w.detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [normed, Tied])
def test_workers_one_by_one_are_what_vmap_computes(way, make, at_once):
    torch.manual_seed(0)
    model, x_wb = make(), torch.randn(3, 5, 3)
    stacked, in_turn = StackedModel(model, 3), StackedModel(model, 3, stacking=WAYS[way])
    expected, gradients = gradients_of(stacked, x_wb, at_once=False)
    loss_w, own = gradients_of(in_turn, x_wb, at_once=at_once)
    torch.testing.assert_close(loss_w, expected)
    for ours, theirs in zip(own, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(in_turn.buffers(), stacked.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", ["vmap", *WAYS])
@pytest.mark.parametrize("make", [Centred, Quantised])
def test_buffers_are_those_of_each_worker_by_itself(way, make):
    torch.manual_seed(0)
    model, x_twb = make(), torch.randn(3, 3, 5, 3)
    alone = [copy.deepcopy(model) for _ in range(3)]
    stacked = StackedModel(model, 3, stacking=WAYS.get(way))
    for x_wb in x_twb:
        expected = torch.stack([own(x_b) for own, x_b in zip(alone, x_wb, strict=True)])
        torch.testing.assert_close(stacked(x_wb), expected)
    for name, _ in model.named_buffers(remove_duplicate=False):
        rows = torch.stack([own.get_buffer(name) for own in alone])
        torch.testing.assert_close(stacked.module.get_buffer(name), rows)
    assert len(list(stacked.buffers())) == 1


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("way", ["vmap", *WAYS])
@pytest.mark.parametrize("make", [Recurrent, Scaled, normed, TwoNames, repeated])
def test_gradients_are_those_by_the_buffer_that_was_there(way, make, at_once):
    torch.manual_seed(0)
    model, x_twb = make(), torch.randn(3, 3, 5, 3)
    alone = [copy.deepcopy(model) for _ in range(3)]
    stacked = StackedModel(model, 3, stacking=WAYS.get(way))
    for x_wb in x_twb:
        stacked.zero_grad()
        loss_w, found = gradients_of(stacked, x_wb, at_once=at_once)
        for i, own in enumerate(alone):
            own.zero_grad()
            loss = (i + 1) * own(x_wb[i]).square().sum()
            (2 * loss).backward()
            torch.testing.assert_close(loss_w[i], loss.detach())
            for name, buffer in own.named_buffers():
                row = stacked.module.get_buffer(name)[i]
                torch.testing.assert_close(row, buffer.detach_())
            for ours, theirs in zip(found, own.parameters(), strict=True):
                torch.testing.assert_close(ours[i], theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["vmap", *WAYS])
@pytest.mark.parametrize("other", [torch.ones(2), torch.tensor(1.0), None])
def test_a_buffer_of_another_shape_is_refused(way, other):
    stacked = StackedModel(Caching(other), 3, stacking=WAYS.get(way))
    with pytest.raises(ValueError, match=r"'cache' of shape \[1\] another of shape (\[2?\]|None)"):
        stacked(torch.ones(3, 5, 3))


@pytest.mark.parametrize("way", ["vmap", *WAYS])
@pytest.mark.parametrize("names", [["first"], ["second"]])
def test_a_buffer_of_two_names_that_would_become_two_is_refused(way, names):
    stacked = StackedModel(Renaming(*names), 3, stacking=WAYS.get(way))
    with pytest.raises(ValueError, match="one alone of 'first' and 'second', which are one buffer"):
        stacked(torch.ones(3, 5, 3))
    stacked = StackedModel(Renaming("first", "second"), 3, stacking=WAYS.get(way))
    for _ in range(2):
        stacked(torch.ones(3, 5, 3))
    assert (stacked.module.second == 2).all() and stacked.module.first is stacked.module.second


def test_workers_side_by_side_are_those_one_after_the_other_bit_for_bit():
    torch.manual_seed(0)
    model, x_wb = normed(), torch.randn(3, 5, 3)
    (first, ours), (second, theirs) = (
        gradients_of(StackedModel(model, 3, stacking=stacking), x_wb, at_once=True)
        for stacking in (WAYS["loop"], WAYS["shares"])
    )
    assert first.equal(second)
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("way", ["parts", "shares"])
def test_a_forked_child_starts_threads_of_its_own(way):
    model, x_wb = StackedModel(nn.Linear(3, 2), 3, stacking=WAYS[way]), torch.ones(3, 5, 3)
    with torch.no_grad():
        expected = model(x_wb)
        found = run_in_child(lambda: model(x_wb).tolist(), doing="computing", limit_s=30)
    assert found == expected.tolist()


@pytest.mark.parametrize(("num_workers", "num_parts"), [(3, 2), (2, 3), (5, 3)])
def test_parts_are_of_all_workers_and_differ_by_one_at_most(num_workers, num_parts):
    model = StackedModel(nn.Linear(3, 2), num_workers)
    parts = Rows(model.module).stacked(num_workers, num_parts)
    rows = [list(range(num_workers))[part.rows] for part in parts]
    assert [row for own in rows for row in own] == list(range(num_workers))
    sizes = [len(own) for own in rows]
    assert len(sizes) == min(num_workers, num_parts) and max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part.trained[0].equal(model.module.weight[part.rows])


@pytest.mark.parametrize("way", WAYS)
def test_side_by_side_precision_and_mode_are_the_caller_s(way):
    model = StackedModel(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), 3, stacking=WAYS[way])
    x_wb = torch.randn(3, 5, 3)
    exact = model.eval()(x_wb)
    with torch.autocast("cpu", torch.bfloat16):
        assert not model(x_wb).float().equal(exact)
    model.train()
    with torch.no_grad():
        assert (model(torch.ones(3, 50, 3)) == 0).any()
        assert not (model.eval()(torch.ones(3, 50, 3)) == 0).any()
        assert not model(torch.ones(3, 5, 3)).requires_grad


def test_dropout_is_another_for_each_worker():
    model = StackedModel(nn.Dropout(), 2, stacking=WAYS["loop"])
    model.register_buffer("weights", torch.ones(2, 1))  # of as many workers
    model.module.register_buffer("unused", torch.ones(2, 1))
    first, second = model(torch.ones(2, 100))
    assert not first.equal(second)


def test_models_follow_weights_that_have_moved():
    model = StackedModel(nn.Linear(3, 2), 2, stacking=WAYS["loop"])
    x_wb = torch.randn(2, 4, 3)
    model(x_wb)
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
    assert not model(x_wb).any()


def test_workers_that_are_alike_are_computed_by_one_model():
    torch.manual_seed(0)
    plain = normed().eval()
    model, x_wb = StackedModel(plain, 3).eval(), torch.randn(3, 5, 3)
    with model.alike():
        rows = model(x_wb)
    torch.testing.assert_close(rows, torch.stack([plain(x_b) for x_b in x_wb]))
    assert model(x_wb).requires_grad


def test_a_model_that_vmap_refuses_trains_in_a_loop():
    model, x_b = ByData(), torch.randn(4, 3)
    stacked = StackedModel(model, 2, stacking=WAYS["loop"])
    stacked(torch.stack([x_b, -x_b])).sum().backward()
    assert stacked.module.layer.weight.grad.shape == (2, 2, 3)


def test_a_copy_computes_by_its_own_weights():
    model = StackedModel(nn.Linear(3, 2), 2, stacking=WAYS["shares"])
    x_wb = torch.randn(2, 4, 3)
    before = model(x_wb)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(x_wb).any()
    assert model(x_wb).equal(before)


def test_in_a_loop_the_work_grows_with_the_workers_not_with_their_square():
    def moved(num_workers: int) -> int:
        model = StackedModel(nn.Linear(64, 64), num_workers, stacking=WAYS["loop"])
        x_wb = torch.randn(num_workers, 1, 64)
        with MemoryTraffic() as traffic:
            model(x_wb).sum().backward()
        return traffic.num_bytes

    assert moved(32) < 1.1 * 8 * moved(4)


@pytest.mark.parametrize("fields", [{"way": "pile"}, {"threads": 0}])
def test_what_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Stacking(**fields)


@pytest.mark.parametrize("way", WAYS)
def test_models_of_rows_are_in_the_modes_of_each_part(way):
    """Also where the whole is in training mode all the time."""
    model = StackedModel(normed(), 3, stacking=WAYS[way])
    norm, x_wb = model.module[1], torch.randn(3, 5, 3)

    def changes():
        before = norm.running_mean.clone()
        with torch.no_grad():
            model(x_wb)
        return not norm.running_mean.equal(before)

    assert changes()
    norm.eval()
    assert not changes()
    norm.train()
    assert changes()
    norm.eval()
    with evaluating(model):
        assert not changes()
    assert model.training and not changes()


@pytest.mark.parametrize("register", ["hook", "post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused_since_its_copies_have_none(register):
    model = normed()
    getattr(model[3].weight, f"register_{register}")(lambda _: None)
    with pytest.raises(ValueError, match=r"'3.weight' has a hook on its .*backend=gloo"):
        StackedModel(model, 2)


def test_a_model_that_cannot_be_copied_is_refused():
    model = normed()
    model.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"fails \(cannot pickle .*lock.*backend=gloo"):
        StackedModel(model, 2)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("way", ["loop", "shares"])
def test_sparse_gradients_are_refused_as_by_the_engine(way, at_once):
    model = StackedModel(nn.Embedding(5, 3, sparse=True), 3, stacking=WAYS[way])
    with pytest.raises(ValueError, match="make the layer without sparse=True"):
        gradients_of(model, torch.ones(3, 4, dtype=torch.long), at_once=at_once)
