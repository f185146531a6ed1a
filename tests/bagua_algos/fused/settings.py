"""Settings of torch's elementwise optimizers, and models of awkward shapes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

SETTINGS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd nesterov": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "sgd dampening": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True},
    ),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam foreach": (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adam maximize": (torch.optim.Adam, {"lr": 0.01, "maximize": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "rmsprop centered": (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
    "rmsprop momentum": (
        torch.optim.RMSprop,
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
    ),
    "rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 0.01, "t0": 5}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    # By an eps of 1e-10 a gradient of 1e-9 takes a whole step, and with it the last bits in which
    # two programs round it.
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01, "eps": 1e-3}),
    "adagrad decay": (
        torch.optim.Adagrad,
        {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-3},
    ),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "nadam decoupled": (
        torch.optim.NAdam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "radam decoupled": (
        torch.optim.RAdam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
}
SHAPES = [(3,), (7, 5), (16,), (), (1,), (64, 3), (129,), (5, 5, 5), (300, 7), (2,), (13,)]


def make_parameters(device: str = "cpu") -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(device)) for shape in SHAPES]


def make(setting: str, parameters: list[nn.Parameter]) -> Optimizer:
    """Over two groups, one with a learning rate of its own."""
    cls, options = SETTINGS[setting]
    rate = options["lr"]
    groups = [{"params": parameters[:6]}, {"params": parameters[6:], "lr": rate / 2}]
    return cls(groups, **options)


def set_gradients(
    parameters: list[nn.Parameter], step: int, is_used: Callable[[int], bool] = lambda index: True
) -> None:
    """Gradients that follow from the step, of unlike sizes; None for parameters not used."""
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (index % 5 - 2)
        gradient = gradient.to(parameter.device)
        parameter.grad = gradient if is_used(index) and parameter.requires_grad else None


def assert_same(ours: Optimizer, theirs: Optimizer) -> None:
    """Parameters and `state_dict` are equal, bit for bit and type for type."""
    for own, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for a, b in zip(own["params"], other["params"], strict=True):
            assert a.equal(b)
    own, other = ours.state_dict(), theirs.state_dict()
    assert own["param_groups"] == other["param_groups"]
    assert own["state"].keys() == other["state"].keys()
    for index, state in other["state"].items():
        assert own["state"][index].keys() == state.keys()
        for name, value in state.items():
            found = own["state"][index][name]
            assert type(found) is type(value), name
            if isinstance(value, torch.Tensor):
                assert (found.shape, found.dtype) == (value.shape, value.dtype), name
                assert found.equal(value), name
            else:
                assert found == value, name
