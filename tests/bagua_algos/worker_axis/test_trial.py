"""What keeps vmap from computing stacked copies of a model: all but what it computes as one."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bagua_algos.worker_axis.trial import RELATIVE, why_not_stacked
from tests.bagua_algos.worker_axis.models import ByData, normed


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Layers(nn.Module):
    """Two linear layers, and `between` for what is between."""

    def __init__(self, between=lambda own, h_b: h_b):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(3, 4), nn.Linear(4, 2), between
        nn.init.ones_(self.first.bias)  # so that something is above zero
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x_b):
        return self.second(self.between(self, self.first(x_b).relu()))


def hooked(own, h_b):
    if h_b.requires_grad:
        h_b.register_hook(lambda gradient: 2 * gradient)
    return h_b


def checkpointed(own, h_b):
    return checkpoint(lambda x: own.second(x) @ own.second.weight, h_b, use_reentrant=False)


def counted(own, h_b):
    own.passes += 1
    return h_b * own.passes


def of_mode(own, h_b):
    """Wrong by vmap in one mode alone."""
    return hooked(own, functional.dropout(h_b, training=own.training))


def of_first(own, h_b):
    """Torch's own padding row, which vmap gives a gradient."""
    ids_b = (h_b[:, 0] > 0).long()
    return h_b + torch.embedding(own.first.weight.T.contiguous(), 0 * ids_b, 0)


X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("between", "obstacle"),
    [
        (hooked, "by vmap its parameter 'first.weight' gets another gradient"),
        (of_mode, "by vmap its parameter 'first.weight' gets another gradient"),
        (of_first, "by vmap its parameter 'first.weight' gets another gradient"),
        (lambda own, h_b: h_b + 0.5 * h_b.requires_grad, "by vmap it has other outputs"),
        (checkpointed, "t() expects a tensor with <= 2 dimensions, but self is 3D"),
    ],
)
def test_what_vmap_computes_otherwise_is_told(between, obstacle):
    assert obstacle in str(why_not_stacked(Layers(between), X))


@pytest.mark.parametrize("register", ["full_backward_hook", "full_backward_pre_hook"])
def test_backward_hooks_are_told_though_they_change_nothing(register):
    model = Layers()
    getattr(model.second, f"register_{register}")(lambda *_: None)
    assert "hooks of backward passes, as that of the module 'second'" in why_not_stacked(model, X)


@pytest.mark.parametrize(
    "model",
    [
        Layers(),
        Layers(counted),
        Layers(lambda own, h_b: functional.dropout(h_b, training=own.training)),
        Layers(lambda own, h_b: functional.dropout(h_b)),
        Layers(lambda own, h_b: h_b.detach()),
        Layers().requires_grad_(False),
        Layers(lambda own, h_b: h_b * torch.nan),
        Layers().double(),
        normed(),  # where gradients before the normalisation are nothing but rounding
    ],
    ids=str,
)
def test_what_it_computes_alike_is_not(model):
    dtype = next(model.parameters()).dtype
    assert why_not_stacked(model, X.to(dtype)) is None


def test_rounding_is_nothing_to_be_told():
    torch.manual_seed(0)
    parts = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())]
    for dtype in (torch.float32, torch.bfloat16):
        model, x_b = nn.Sequential(*parts).to(dtype), torch.randn(2, 8, dtype=dtype)
        assert why_not_stacked(model, x_b) is None


@pytest.mark.parametrize("factor", [1 - 2 * RELATIVE, 1 + 2 * RELATIVE])
def test_a_small_factor_is_told(factor):
    def scaled(own, h_b):
        if h_b.requires_grad:
            h_b.register_hook(lambda gradient: factor * gradient)
        return h_b

    assert why_not_stacked(Layers(scaled), X) is not None


def test_the_model_stays_as_it_was():
    model = normed()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert why_not_stacked(model, X) is None
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sparse_gradients_are_refused_as_by_the_engine():
    model = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(ValueError, match="make the layer without sparse=True"):
        why_not_stacked(model, torch.tensor([1, 2]))


def test_control_flow_by_data_is_told_in_vmaps_words():
    assert "vmap" in str(why_not_stacked(ByData(), X))
