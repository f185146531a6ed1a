"""Workers of equal weights, whose layers are computed once for all."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from bagua_algos.worker_axis import equal_rows
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking

NUM_WORKERS = 3
WAYS = {"vmap": Stacking(way="vmap", threads=1), "parts": Stacking(way="parts", threads=2)}


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


class Dynamic(nn.Module):
    """Weights that are made of the inputs: another one for each worker."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x_b):
        images_b = self.layer(x_b).view(-1, 1, 2, 2)
        filters = self.layer(x_b)[:1].view(1, 1, 2, 2)
        y_b = functional.conv2d(images_b, filters, x_b.new_ones(1)).flatten(1)
        return functional.linear(y_b, x_b.sum(1, keepdim=True))


class Cut(nn.Module):
    """Parts of a weight, its transpose, and one that is computed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x_b):
        x_b = functional.linear(x_b, self.weight[:2]) @ self.weight[2:]
        x_b = functional.linear(x_b, self.weight.T)
        return functional.linear(x_b, self.weight * self.scale, self.weight[0])


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.requires_grad_(False)
        self.second.weight = self.first.weight

    def forward(self, x_b):
        return self.second(self.first(x_b))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(-1, (1, 2, 2)), nn.Conv2d(1, 4, 1), *layers, nn.Flatten())


MODELS = {
    "linear": lambda: nn.Linear(4, 3),
    "linear without a bias": lambda: nn.Linear(4, 3, bias=False),
    "linear of places": lambda: nn.Sequential(nn.Unflatten(-1, (2, 2)), nn.Linear(2, 3)),
    "convolution": lambda: images(nn.Conv2d(4, 6, 2, bias=False)),
    "convolution with a bias": lambda: images(nn.Conv2d(4, 6, 2, padding=1)),
    "strides and dilation": lambda: images(nn.Conv2d(4, 6, 2, stride=2, padding=2, dilation=2)),
    "uneven options": lambda: images(nn.Conv2d(4, 6, (1, 2), stride=(2, 1), padding=(1, 0))),
    "groups": lambda: images(nn.Conv2d(4, 6, 2, groups=2)),
    "padding by name": lambda: images(nn.Conv2d(4, 6, 3, padding="same")),
    "norms of batches": lambda: images(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 2)),
    "weights of inputs": Dynamic,
    "parts of weights": Cut,
    "frozen and tied": Frozen,
}


def passed(model: StackedModel, x_wb: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, gradients, and buffers after one pass; each worker has a loss of its own."""
    outputs_wb = model(x_wb)
    weights_w = torch.arange(1.0, 1 + len(x_wb), dtype=x_wb.dtype)
    (outputs_wb.square().flatten(1).sum(1) * weights_w).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [outputs_wb.detach(), *gradients, *model.buffers()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_each_worker_has_outputs_and_gradients_of_its_own(name, way):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    x_wb = torch.randn(NUM_WORKERS, 5, 4, dtype=torch.float64)
    apart = StackedModel(model, NUM_WORKERS, stacking=Stacking(way="loop", threads=1))
    once = StackedModel(model, NUM_WORKERS, stacking=WAYS[way])
    once.workers_agree = True
    ours, theirs = passed(once, x_wb), passed(apart, x_wb)
    assert len(ours) == len(theirs) > 1
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(ours[1][0], ours[1][1]), "gradients differ"


def test_one_weight_is_read():
    """The others could be anything, had nobody looked."""
    model = StackedModel(nn.Linear(4, 3), NUM_WORKERS)
    model.workers_agree = True
    x_wb = torch.randn(NUM_WORKERS, 5, 4)
    before = model(x_wb)
    weight = next(model.parameters())
    model._equal_rows.look_at = lambda _: None
    with torch.no_grad():
        weight[1:] = torch.nan
    torch.testing.assert_close(model(x_wb), before)


def test_nobody_has_promised_anything_by_default():
    model = StackedModel(nn.Linear(4, 3, bias=False), NUM_WORKERS)
    with torch.no_grad():
        next(model.parameters())[2] = 0
    assert not model.workers_agree and not model(torch.ones(NUM_WORKERS, 5, 4))[2].any()


@pytest.mark.parametrize("way", WAYS)
def test_a_promise_that_is_broken_at_the_start_is_found_at_once(way):
    model = StackedModel(nn.Linear(4, 3), NUM_WORKERS, stacking=WAYS[way])
    model.workers_agree = True
    with torch.no_grad():
        list(model.parameters())[-1][2, 1] += 1e-7
    with pytest.raises(ValueError, match=r"weights differ.*workers_agree = False"):
        model(torch.ones(NUM_WORKERS, 5, 4))


@pytest.mark.parametrize("place", [0, 9, 10, 24])
def test_one_that_is_broken_later_is_found_within_a_round(place, monkeypatch):
    monkeypatch.setattr(equal_rows, "_LOOKED_AT", 4)
    rows = equal_rows.EqualRows("weights", "workers_agree")
    tensors = [torch.zeros(NUM_WORKERS, 2, 5), torch.full((NUM_WORKERS, 15), torch.nan)]
    for _ in range(30):
        rows.look_at(tensors)
    flat = tensors[0].flatten(1) if place < 10 else tensors[1]
    flat[2, place % 10 if place < 10 else place - 10] = 1
    with pytest.raises(ValueError, match="differ"):
        for _ in range(8):  # 3 looks at the first, 4 at the second, and one that begins anew
            rows.look_at(tensors)
