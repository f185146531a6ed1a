from functools import partial

import pytest
import torch

from bagua_algos.engine.script.elementwise import check_elementwise, why_not_elementwise
from tests.bagua_algos.fused.settings import SETTINGS


class Lamb(torch.optim.Adam):
    """By its name."""


PARAMETERS = [torch.nn.Parameter(torch.zeros(2, 3))]


@pytest.mark.parametrize("make", [Lamb, torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Muon])
def test_what_looks_at_whole_tensors_is_refused_for_stacked_workers(make):
    name = make.__name__
    with pytest.raises(ValueError, match=f"{name} looks at whole tensors, and 2 simulated"):
        check_elementwise(make(PARAMETERS), 2)
    check_elementwise(make(PARAMETERS), 1)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_what_overlooks_gaps_between_workers_is_refused_for_them(make):
    with pytest.raises(ValueError, match="2 simulated workers' weights are such rows"):
        check_elementwise(make(PARAMETERS, lr=0.1, fused=True), 2)
    check_elementwise(make(PARAMETERS, lr=0.1, fused=True), 1)


class Flattening(torch.optim.SGD):
    """Changes a flat view of each tensor, which is a copy where there are gaps."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.reshape(-1).sub_(p.grad.reshape(-1), alpha=self.param_groups[0]["lr"])


class Spanning(torch.optim.SGD):
    """Changes all from the first element of a tensor to its last one."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            length = 1 + sum((n - 1) * s for n, s in zip(p.shape, p.stride(), strict=True))
            p.as_strided((length,), (1,)).sub_(0.1)


@pytest.mark.parametrize("make", [Flattening, Spanning])
def test_rows_that_do_not_change_and_gaps_that_do_are_each_enough(make):
    optimizer = make(PARAMETERS, lr=0.1)
    assert why_not_elementwise(optimizer, exactly=True, alone=True) is None
    with pytest.raises(ValueError, match=f"{make.__name__} overlooks gaps between the rows"):
        check_elementwise(optimizer, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_do_not_change_are_found_at_small_rates(dtype):
    optimizer = Flattening([torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))], lr=1e-4)
    with pytest.raises(ValueError, match="overlooks gaps between the rows"):
        check_elementwise(optimizer, 2)


FOREACH = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)


@pytest.mark.parametrize("make", [FOREACH, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_is_elementwise_is_not(make):
    check_elementwise(make(PARAMETERS), 2)


COMPLEX = [torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.complex64))]


@pytest.mark.parametrize("make", [FOREACH, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_is_elementwise_is_not_of_complex_numbers_either(make):
    check_elementwise(make(COMPLEX), 2)
    assert why_not_elementwise(make(COMPLEX), exactly=True) is None


class GlobalClip(torch.optim.SGD):
    """Clips by the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        own = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.square().sum() for p in own]).sum().sqrt()
        for p in own:
            p.add_(p.grad, alpha=-self.param_groups[0]["lr"] / max(1.0, float(norm)))


class DoG(torch.optim.SGD):
    """A rate by the distance from the beginning: Ivgi et al., arXiv 2302.12022."""

    @torch.no_grad()
    def step(self, closure=None):
        own, group = self.param_groups[0]["params"], self.param_groups[0]
        for p in own:
            self.state[p].setdefault("first", p.clone())
        squares = sum((p - self.state[p]["first"]).square().sum() for p in own)
        group["distance"] = max(group.get("distance", 1e-4), float(squares) ** 0.5)
        group["gradients"] = group.get("gradients", 0.0) + sum(
            float(p.grad.square().sum()) for p in own
        )
        for p in own:
            p.sub_(p.grad, alpha=group["distance"] / group["gradients"] ** 0.5)


class Prodigy(torch.optim.SGD):
    """A rate by an estimate of the distance, which begins at 1e-6: Mishchenko and Defazio, arXiv
    2306.06101, without momentum.
    """

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        d, above, below = group.get("d", 1e-6), group.get("above", 0.0), 0.0
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state.update(first=p.clone(), sum=torch.zeros_like(p), squares=torch.zeros_like(p))
            above += d * d * float((p.grad * (state["first"] - p)).sum())
            state["sum"].add_(p.grad, alpha=d * d)
            state["squares"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001 * d * d)
            below += float(state["sum"].abs().sum())
        group["above"], group["d"] = above, max(d, above / below)
        for p in group["params"]:
            squares = self.state[p]["squares"].sqrt().add_(group["d"] * 1e-8)
            p.addcdiv_(p.grad, squares, value=-group["d"] * d)


@pytest.mark.parametrize("make", [GlobalClip, DoG, Prodigy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_looks_at_all_tensors_is_refused_for_stacked_workers(make, dtype):
    optimizer = make([torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))], lr=0.1)
    with pytest.raises(ValueError, match=f"{make.__name__} .* looks at other tensors, too"):
        check_elementwise(optimizer, 2)
    assert why_not_elementwise(optimizer) is None
    check_elementwise(optimizer, 1)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_elementwise_optimizer_of_torch_is_taken(setting, dtype):
    cls, options = SETTINGS[setting]
    check_elementwise(cls([torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))], **options), 2)


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=10.0, momentum=0.9),
        partial(torch.optim.SGD, lr=100.0),
        partial(torch.optim.RMSprop, lr=0.1, momentum=0.9, eps=1e-4),
        torch.optim.Adam,
    ],
)
def test_coarse_rounding_is_no_difference(make):
    check_elementwise(make([torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.float16))]), 2)


class ByNorm(torch.optim.SGD):
    """A rate by the norms of a tensor and its gradient."""

    def __init__(self, dtype, lr, rate):
        super().__init__([torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))], lr=lr)
        self.rate = rate

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                rate = self.rate(p.float().norm(), p.grad.float().norm())
                p.sub_(p.grad, alpha=float(group["lr"] * rate))


BY_NORMS = {
    "lars": lambda own, gradient: 1e-3 * own / gradient,
    "clip": lambda own, gradient: min(1.0, 1.0 / float(gradient)),
    "adaptive_clip": lambda own, gradient: min(1.0, float(0.01 * own / gradient)),
}


@pytest.mark.parametrize("rate", BY_NORMS.values(), ids=BY_NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lr", [1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_a_rate_by_norms_is_found_at_rates_that_are_usual(rate, dtype, lr):
    """Also where steps are as small as roundings of 16 bits."""
    assert why_not_elementwise(ByNorm(dtype, lr, rate), alone=True) is not None


class ByShape(torch.optim.SGD):
    """Half the rate for tensors of some shapes."""

    def __init__(self, is_slow):
        super().__init__(PARAMETERS, lr=0.1)
        self.is_slow = is_slow

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.05 if self.is_slow(p) else 0.1)


@pytest.mark.parametrize(
    "is_slow",
    [
        lambda p: p.numel() == 1,
        lambda p: p.numel() < 4096,
        lambda p: p.dim() > 1 and 1 in p.shape,
        lambda p: p.dim() == 2 and p.shape[0] < p.shape[1],
        lambda p: p.dim() == 2 and p.shape[0] > p.shape[1],
        *(lambda p, dim=dim: p.dim() == dim for dim in range(1, 6)),
    ],
)
def test_a_rate_by_the_shape_of_a_tensor_is_found(is_slow):
    reason = why_not_elementwise(ByShape(is_slow))
    assert reason == "it changes elements otherwise where they are parts of a larger tensor"


class Failing(torch.optim.SGD):
    """Has no step for some tensors."""

    def __init__(self, fails, *told):
        super().__init__(PARAMETERS, lr=0.1)
        self.fails, self.told = fails, told

    def step(self, closure=None):
        own = self.param_groups[0]["params"]
        if any(self.fails(p, own) for p in own):
            raise RuntimeError(*self.told)
        return super().step(closure)


@pytest.mark.parametrize(
    "fails", [lambda p, own: p.dim() == 3, lambda p, own: p.dim() == 3 and len(own) == 1]
)
def test_the_first_line_of_an_error_in_a_trial_is_told(fails):
    optimizer = Failing(fails, "no volumes\nin this version")
    reason = why_not_elementwise(optimizer, alone=True)
    assert reason == "a trial of it fails (RuntimeError: no volumes)"
    reason = why_not_elementwise(Failing(fails), alone=True)
    assert reason == "a trial of it fails (RuntimeError)"


class ByGroup(torch.optim.SGD):
    """Divides gradients by their norm in some groups."""

    num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        ByGroup.num_steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                norm = float(p.grad.norm()) if group["divides"] else 1.0
                p.sub_(p.grad, alpha=group["lr"] / norm)


def of_groups(*options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 3))], **own} for own in options]
    return ByGroup(groups, lr=0.1)


@pytest.mark.parametrize("place", range(3))
def test_one_group_that_looks_at_whole_tensors_is_enough(place):
    optimizer = of_groups(*({"divides": index == place} for index in range(3)))
    with pytest.raises(ValueError, match="ByGroup looks at whole tensors"):
        check_elementwise(optimizer, 2)


def test_groups_whose_rates_alone_differ_are_tried_once(monkeypatch):
    monkeypatch.setattr(ByGroup, "num_steps", 0)
    assert why_not_elementwise(of_groups({"divides": False}), alone=True) is None
    num_steps_of_one, ByGroup.num_steps = ByGroup.num_steps, 0
    of_many = of_groups(*({"divides": False, "lr": 0.1 + index} for index in range(5)))
    assert why_not_elementwise(of_many, alone=True) is None
    assert ByGroup.num_steps == num_steps_of_one > 0


def test_one_group_that_overlooks_gaps_is_enough():
    groups = [{"params": PARAMETERS}, {"params": [torch.nn.Parameter(torch.zeros(4))]}]
    for fused in (0, 1):
        groups[fused]["fused"], groups[1 - fused]["fused"] = True, False
        with pytest.raises(ValueError, match="overlooks gaps between the rows of a tensor"):
            check_elementwise(torch.optim.SGD(groups, lr=0.1), 2)


class Slightly(torch.optim.SGD):
    """A rate that depends on the number of all elements, by so small a share."""

    share = 1e-3

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            rate = group["lr"] * (1 + self.share / sum(p.numel() for p in group["params"]))
            for p in group["params"]:
                p.add_(p.grad.sign() * p.abs().clamp(min=1e-3), alpha=-rate)


def test_a_small_difference_that_is_no_rounding_is_found_and_rounding_is_none():
    optimizer = Slightly(PARAMETERS, lr=0.1)
    reason = "it looks at other tensors, too"
    assert reason in str(why_not_elementwise(optimizer, alone=True))
    optimizer.share = 5e-7
    assert why_not_elementwise(optimizer, alone=True) is None


class OfSmall(torch.optim.SGD):
    """Decays elements near 0 by the number of tensors."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        own = self.param_groups[0]["params"]
        for p in own:
            p.mul_(torch.where(p.abs() < 0.003, 1 - 3e-6 * len(own), 1.0))


def test_a_difference_in_tensors_of_small_elements_alone_is_found():
    reason = why_not_elementwise(OfSmall(PARAMETERS, lr=0.1), alone=True)
    assert "it looks at other tensors, too" in str(reason)


class Halves(torch.optim.SGD):
    """Rounds otherwise where there are other tensors: it adds halves of a gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        own = self.param_groups[0]["params"]
        num_parts = 2 if len(own) > 1 else 1
        for p in own:
            for _ in range(num_parts):
                p.sub_(p.grad, alpha=0.1 / num_parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rounding_of_large_elements_that_shows_in_small_ones_is_no_difference(dtype):
    optimizer = Halves([torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))], lr=0.1)
    assert why_not_elementwise(optimizer, alone=True) is None


class Logarithm(torch.optim.SGD):
    """A step in the logarithm, which not every weight has."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.copy_((p.log() - 0.1 * p.grad).exp())


class Gone(torch.optim.SGD):
    """Comes to no number at all."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.div_(p - p)


class GoneTogether(torch.optim.SGD):
    """Comes to no numbers in tensors that are as large as all others together."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            if p.numel() > 8000:
                p[:100].div_(0.0).sub_(p[:100])


def test_what_comes_to_no_numbers_in_a_larger_tensor_alone_is_a_difference():
    reason = why_not_elementwise(GoneTogether(PARAMETERS, lr=0.1))
    assert reason == "it changes elements otherwise where they are parts of a larger tensor"


def test_some_elements_may_come_to_no_numbers_but_not_all():
    check_elementwise(Logarithm(PARAMETERS, lr=0.1), 2)
    reason = why_not_elementwise(Gone(PARAMETERS, lr=0.1))
    assert reason == "it comes to no numbers in a trial of it"


class Keeping(torch.optim.SGD):
    """Keeps something of each tensor."""

    def __init__(self, of):
        super().__init__([torch.nn.Parameter(torch.zeros(2, 3))], lr=0.1)
        self.of = of

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].update(self.of(p))
        return super().step(closure)


@pytest.mark.parametrize(
    "of",
    [
        lambda p: {"kept": p.detach().clone()},
        lambda p: {"kept": p.detach() > 0, "step": torch.tensor(3)},
        lambda p: {"kept": 1.5, "word": "same", "nothing": None},
        lambda p: {},
    ],
)
def test_what_is_kept_of_each_element_or_is_the_same_for_all_is_taken(of):
    assert why_not_elementwise(Keeping(of), exactly=True) is None


@pytest.mark.parametrize(
    "of",
    [
        lambda p: {"kept": p.numel()},
        lambda p: {"kept": 1 if p.dim() > 1 else 1.0},
        lambda p: {"kept": 1.0 if p.dim() > 1 else 1},
        lambda p: {"kept": torch.tensor(p.numel())},
        lambda p: {"kept": torch.tensor(p.numel() > 4096)},
        lambda p: {"kept": torch.tensor(2.0) if p.numel() > 5001 else 2.0},
        lambda p: {"kept": p.detach().sum()},
        lambda p: {"kept": p.detach().flatten().flip(0).view_as(p)},
        lambda p: {"kept": p.detach().clone() if p.dim() > 2 or p.numel() > 5001 else 0},
        lambda p: {"kept": p.detach().flatten()},
    ],
)
def test_what_is_kept_of_whole_tensors_is_found(of):
    reason = why_not_elementwise(Keeping(of), exactly=True)
    assert reason == "what it keeps as 'kept' is not that of each element by itself"
    assert why_not_elementwise(Keeping(of)) is None, "but no step depends on it"


@pytest.mark.parametrize("has_more", [lambda p: p.dim() > 2, lambda p: p.numel() == 37])
def test_what_is_kept_of_some_tensors_alone_is_found(has_more):
    optimizer = Keeping(lambda p: {"kept": 1} if has_more(p) else {})
    reason = why_not_elementwise(optimizer, exactly=True)
    assert reason == "it keeps something else of some tensors than of others"
