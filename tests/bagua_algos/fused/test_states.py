"""What a fused optimizer keeps of each parameter is at any time what it keeps without."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from bagua_algos import fuse_optimizer
from tests.bagua_algos.fused.settings import assert_same, make_parameters, set_gradients
from tests.bagua_algos.fused.test_fuse import Counting

Kind = Callable[[Tensor, int], Any]
KINDS: dict[str, Kind] = {
    "elements": lambda gradient, step: gradient * step,
    "narrow elements": lambda gradient, step: (gradient * step).bfloat16(),
    "a number": lambda _, step: torch.tensor(step),
    "another number": lambda _, step: torch.tensor(step + 0.5),
    "a constant": lambda _, step: step,
    "nothing": lambda _, step: None,
}


class Keeping(Optimizer):
    """Keeps something of another kind at each step, or nothing at all."""

    def __init__(self, parameters: Any, kinds: list[Kind]) -> None:
        self.kinds = kinds
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["steps"] = step = state.get("steps", 0) + 1
                kept = self.kinds[step % len(self.kinds)](p.grad, step)
                state.pop("kept", None)
                if kept is not None:
                    state["kept"] = kept
                p.data.add_(p.grad, alpha=-group["lr"])


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_state_may_be_of_another_kind_at_each_step(first, second):
    ours, theirs = make_parameters(), make_parameters()
    kinds = [KINDS[first], KINDS[second]]
    fused, plain = fuse_optimizer(Keeping(ours, kinds)), Keeping(theirs, kinds)
    for step in range(5):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
        assert_same(fused, plain)


@pytest.mark.parametrize("changed", [slice(None), slice(1, 2), slice(0)])
def test_constants_that_a_script_changes_between_steps_count(changed):
    ours, theirs = make_parameters(), make_parameters()
    fused, plain = fuse_optimizer(Counting(ours)), Counting(theirs)
    for step in range(4):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
            for parameter in parameters[changed]:
                optimizer.state[parameter]["steps"] = 40 + step
    assert_same(fused, plain)


def test_numbers_in_a_state_stay_the_same_tensors():
    """As in torch, for those who look at one all the time."""
    parameters = make_parameters()
    optimizer = fuse_optimizer(torch.optim.Adam(parameters, lr=0.01))
    set_gradients(parameters, 0)
    optimizer.step()
    counts = [optimizer.state[p]["step"] for p in parameters]
    optimizer.step()
    optimizer.step()
    assert [count.item() for count in counts] == [3.0] * len(parameters)
    assert all(optimizer.state[p]["step"] is x for p, x in zip(parameters, counts, strict=True))


class CountingAnew(Optimizer):
    """Counts steps in a tensor that is new at each."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                count = self.state[p].get("count", torch.zeros(())) + 1
                self.state[p]["count"] = count
                p.data.add_(p.grad / count, alpha=-group["lr"])


def test_a_number_that_is_a_new_tensor_at_each_step_goes_on():
    ours, theirs = make_parameters(), make_parameters()
    fused = fuse_optimizer(CountingAnew(ours, {"lr": 0.1}))
    plain = CountingAnew(theirs, {"lr": 0.1})
    for step in range(4):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
    assert_same(fused, plain)
    assert {state["count"].item() for state in fused.state.values()} == {4.0}


class Noting(torch.optim.SGD):
    """Counts its steps in what is its own, beside a lock that cannot be copied."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.counts, self.sum, self.lock = [0], torch.zeros(()), threading.Lock()

    def step(self, closure=None):
        with self.lock:
            self.counts[0] += 1
            self.sum += 1
        return super().step(closure)


def test_a_trial_changes_nothing_that_an_optimizer_keeps_in_itself():
    parameters = make_parameters()
    optimizer = fuse_optimizer(Noting(parameters))
    assert (optimizer.counts, optimizer.sum.item()) == ([0], 0)
    set_gradients(parameters, 0)
    optimizer.step()
    assert (optimizer.counts, optimizer.sum.item()) == ([1], 1)
