"""Steps of an optimizer that neither it nor its parameters notice."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_CONTAINERS = (list, dict, set)
_MUTABLE = (*_CONTAINERS, Tensor)
_REPLACED = ("param_groups", "state")


class Trial:
    """An optimizer of the same class, with the options of a group, for other parameters."""

    def __init__(
        self, optimizer: Optimizer, group: dict[str, Any], weights: Sequence[Tensor]
    ) -> None:
        self.parameters = [nn.Parameter(w.clone()) for w in weights]
        self.largest = [weight.abs() for weight in weights]
        """How far from 0 each element has been so far."""
        self.oddity: str | None = None
        """What makes the optimizer unfit, whatever it comes to."""
        trial = object.__new__(type(optimizer))
        for name, value in vars(optimizer).items():
            if name.endswith("_hooks"):
                vars(trial)[name] = OrderedDict()
            elif name != "step":  # which a learning rate scheduler has wrapped
                is_mutable = isinstance(value, _MUTABLE) and name not in _REPLACED
                vars(trial)[name] = copy.deepcopy(value) if is_mutable else value
        options = {name: copy.deepcopy(group[name]) for name in group if name != "params"}
        if not options.get("lr", 1.0):
            options["lr"] = 0.01  # at the beginning of a warm-up nothing would change
        trial.param_groups = [{**options, "params": self.parameters}]
        trial.state = defaultdict(dict)
        self._optimizer = trial
        self._sizes = self._sizes_of_attributes()
        step = type(optimizer).step
        self._step: Callable[..., object] = getattr(step, "__wrapped__", step)  # without hooks

    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step on these."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        self._step(self._optimizer)
        for largest, parameter in zip(self.largest, self.parameters, strict=True):
            torch.fmax(largest, parameter.detach().abs(), out=largest)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if parameter.grad is None or not parameter.grad.equal(gradient):
                self.oddity = "it changes gradients"
        if self._sizes_of_attributes() != self._sizes:
            self.oddity = "it keeps something of its parameters elsewhere than in its state"

    def state_of(self, index: int) -> dict[str, Any]:
        """What the optimizer keeps of a parameter."""
        return self._optimizer.state[self.parameters[index]]

    def _sizes_of_attributes(self) -> dict[str, int]:
        attributes = vars(self._optimizer).items()
        return {
            name: len(value)
            for name, value in attributes
            if isinstance(value, _CONTAINERS) and name not in _REPLACED
        }
