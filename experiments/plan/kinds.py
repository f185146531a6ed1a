"""What the object of each group must be: a class to derive from, or what it must have.

Classes stand here by their names, since those of most groups import torch, which takes seconds.
"""

import functools
from collections.abc import Mapping

from hydra.utils import get_class

from host.errors import UserError

BASES: Mapping[str, str] = {
    "algo": "bagua_algos.Algorithm",
    "net": "netsim.conditions.condition.NetworkCondition",
    "model": "torch.nn.Module",
    "optim": "torch.optim.Optimizer",
    "backend": "experiments.plan.plan.Backend",
    "cluster": "experiments.plan.plan.Cluster",
}
"""The class that an object of a group derives from."""

PROTOCOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "task": (
        "experiments.tasks.base.Task",
        (
            *("num_classes", "metric", "labels_are_characters"),
            *("load", "inputs", "lengths", "loss"),
        ),
    ),
    "data": (
        "experiments.tasks.samplers.Loading",
        ("sampler", "partition", "loaders", "for_tuning", "has_weights", "shares"),
    ),
    "data.sampler": ("experiments.tasks.samplers.Sampler", ("crop", "order")),
}
"""Of groups whose objects may be of any class: one that shows how, and what every run needs."""


def check_kind(made: object, group: str) -> None:
    """Raise `UserError` where `made` is none of the objects that `group` stands for, or has a part
    that is none. A schedule may be any.
    """
    base, needed = PROTOCOLS.get(group, (BASES.get(group), ()))
    if base is None:
        return
    if isinstance(made, functools.partial):
        raise UserError(f"{group}._partial_ makes a function, and no {base}: leave it out")
    said = f"{group}: {type(made).__name__} is no {base}"
    missing = [name for name in needed if not _has(made, name)]
    if missing:
        raise UserError(f"{said}: it has no {', '.join(missing)}")
    if not needed and not isinstance(made, get_class(base)):
        is_pythons = type(made).__module__ == "builtins"
        way = "give a _target_ that makes one" if is_pythons else "derive it from that"
        raise UserError(f"{said}: {way}")
    for part in PROTOCOLS:
        if part.startswith(f"{group}."):
            check_kind(getattr(made, part.removeprefix(f"{group}.")), part)


def _has(made: object, name: str) -> bool:
    """Without asking for it where its class has it: what a property says may be in many files."""
    return name in dir(made) or hasattr(made, name)
