"""Optimizers that cannot be fused are found by a trial of their update."""

from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from bagua_algos import fuse_optimizer
from bagua_algos.engine.script import elementwise
from tests.bagua_algos.fused.settings import make_parameters


class Lamb(Optimizer):
    """By layer, and by its own name."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                ratio = p.detach().norm() / p.grad.norm()
                p.data.add_(p.grad, alpha=-group["lr"] * float(ratio))


class Trusting(Lamb):
    """The same under a name that says nothing."""


class Unheard(Optimizer):
    """The same, and none of the names."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        Optimizer.__init__(self, parameters, {"lr": lr})

    step = Lamb.step


class ByDimension(torch.optim.SGD):
    """Decays matrices alone."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.data.mul_(1 - 0.1 * group["lr"])
        return super().step(closure)


class Noisy(torch.optim.SGD):
    """Draws noise a parameter."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p.grad), alpha=0.1)
        return super().step(closure)


class Clipping(torch.optim.SGD):
    """Changes gradients, which accumulate perhaps."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.clamp_(-1, 1)
        return super().step(closure)


class Centralizing(torch.optim.SGD):
    """Centres the gradients of convolutions."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 3:
                    p.data.sub_(p.grad.mean(), alpha=0.1)
        return super().step(closure)


class Coarse(torch.optim.SGD):
    """Rounds large tensors, as 8-bit optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.numel() >= 4096:
                    p.data.copy_(p.data.half())
        return super().step(closure)


class Remembering(torch.optim.SGD):
    """Keeps something by parameter, and not in its state."""

    def step(self, closure=None):
        vars(self).setdefault("seen", {}).update(
            {p: p.grad for group in self.param_groups for p in group["params"]}
        )
        return super().step(closure)


class Rows(torch.optim.SGD):
    """Keeps a number for each row, which changes nothing yet."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rows"] = p.detach().flatten(1).sum(1) if p.dim() > 1 else p.detach()
        return super().step(closure)


class Around(Optimizer):
    """Steps another optimizer."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.SGD(parameters, lr=0.1)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


class Idle(torch.optim.SGD):
    """Does nothing that a trial could show."""

    def step(self, closure=None):
        return None


@pytest.mark.parametrize(
    ("make_optimizer", "reason"),
    [
        (lambda p: torch.optim.LBFGS(p), "known to look at whole tensors"),
        (lambda p: torch.optim.Adafactor(p), "known to look at whole tensors"),
        (lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]), "known to look"),
        (Lamb, "known to look at whole tensors"),
        (Trusting, "known to look at whole tensors"),
        (Unheard, "changes elements otherwise where they are parts"),
        (lambda p: Unheard(p, lr=0.0), "changes elements otherwise where they are parts"),
        (lambda p: ByDimension(p, lr=0.1), "changes elements otherwise where they are parts"),
        (lambda p: Noisy(p, lr=0.1), "changes elements otherwise where they are parts"),
        (lambda p: Centralizing(p, lr=0.1), "changes elements otherwise where they are parts"),
        (lambda p: Coarse(p, lr=0.1), "changes elements otherwise where they are parts"),
        (lambda p: Clipping(p, lr=0.1), "it changes gradients"),
        (lambda p: Remembering(p, lr=0.1), "of its parameters elsewhere than in its state"),
        (lambda p: Rows(p, lr=0.1), "what it keeps as 'rows' is not that of each element"),
        (Around, "it is around another optimizer"),
        (lambda p: Idle(p, lr=0.1), "it changes nothing in a trial"),
        (lambda p: torch.optim.AdamW(p, fused=True), "it has fused=True: leave that out"),
        (lambda p: torch.optim.SGD(p, differentiable=True), "differentiable=True: leave"),
    ],
)
def test_what_looks_at_whole_tensors_is_refused(make_optimizer, reason):
    parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    drawn = torch.random.get_rng_state()
    with pytest.raises(ValueError, match=f"{type(optimizer).__name__} cannot be fused: .*{reason}"):
        fuse_optimizer(optimizer)
    assert not optimizer.state and "step" not in vars(optimizer)
    assert torch.random.get_rng_state().equal(drawn)
    for parameter, before in zip(parameters, make_parameters(), strict=True):
        assert parameter.equal(before)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_what_looks_at_whole_complex_tensors_is_refused(dtype):
    with pytest.raises(ValueError, match="changes elements otherwise where they are parts"):
        fuse_optimizer(Unheard([torch.nn.Parameter(torch.ones(4, dtype=dtype))]))


class Lars(Optimizer):
    """A rate by layer: You et al., arXiv 1708.03888."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                rate = group["lr"] * float(p.detach().norm()) / float(p.grad.norm() + p.norm())
                p.data.add_(p.grad, alpha=-rate)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        Lamb,
        Lars,
        torch.optim.LBFGS,
        torch.optim.Adafactor,
        lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]),
    ],
)
def test_the_trial_finds_what_the_names_say(make_optimizer, monkeypatch):
    monkeypatch.setattr(elementwise, "NOT_ELEMENTWISE", ())
    with pytest.raises(ValueError, match=r"it changes elements otherwise|a trial of it fails"):
        fuse_optimizer(make_optimizer(make_parameters()))
