"""One object of a configuration, and what of a configuration is checked before the others are made.

Most objects are of classes that import torch, which takes seconds. This imports none of them.
"""

from dataclasses import is_dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationValidationError

from experiments.plan.kinds import check_kind
from experiments.plan.limits.limit import WORDS, is_of
from experiments.plan.limits.of_configs import check_config
from experiments.plan.limits.of_host import check_gpu, check_host
from experiments.plan.limits.of_models import check_model_of_task
from experiments.plan.limits.of_targets import check_stop
from experiments.plan.overrides import OPEN_GROUPS
from host.errors import UserError

_TRUSTED = ("bagua_algos", "experiments", "netsim", "torch")
"""Packages whose classes may be looked at before Hydra has judged a `_target_`."""
_MADE_LATER = ("optim", "schedule")
"""Groups whose objects need another one to be made: see `make_plan`."""


def check_first(config: DictConfig) -> None:
    """Raise `UserError` for a network, a value or a pair of values that no run can have: a mistake
    is told at once, where it needs no torch to be seen. `make_plan` checks the rest.
    """
    _check_names(config)
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise UserError(f"{missing[0]} is missing: give {missing[0]}=...")
    net = make_part(config.net, "net")
    try:
        check_config(config, net)
        check_stop(config)
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_names(config: DictConfig) -> None:
    for group in config.names:
        try:
            _ = config.names[group]
        except InterpolationValidationError as error:
            raise UserError(
                f"{group} names no file of conf/{group}: give what is your own a file there, and "
                f"choose it by {group}=NAME"
            ) from error


def check_start(config: DictConfig) -> None:
    """Raise `UserError` as `check_first`, and for what nothing that trains on this host can have: a
    model that does not take the examples, files or libraries that are not there, a missing GPU.
    """
    check_first(config)
    check_model_of_task(config)
    check_host(config)
    check_gpu(config)


def make_part(node: DictConfig, group: str) -> Any:
    """What `node` names by its `_target_`; of `optim` and `schedule`, what makes it. Raises
    `UserError` with one sentence if it cannot be, or is none of what `group` stands for.
    """
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise UserError(f"{group} has no _target_: begin its file as those in conf/{group} do")
    if not isinstance(node.get("_partial_", False), bool):
        raise UserError(f"{group}._partial_ must be true or false, got {node._partial_}")
    _check_kinds_of(node, group)
    try:
        # What models and tasks of libraries get is Python's own lists and dictionaries.
        made = instantiate(node, _convert_="all") if group in OPEN_GROUPS else instantiate(node)
    except InstantiationException as error:
        cause = error.__cause__ or error
        lines = str(cause).splitlines() or [type(cause).__name__]
        said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise UserError(f"{group}: {said}") from error
    if group not in _MADE_LATER:
        check_kind(made, group)
    return made


def _check_kinds_of(node: DictConfig, group: str) -> None:
    """Raise `UserError` for a text where a class of ours or torch's takes a number, true or false
    alone, or a fraction where it takes a whole number, here and in the parts of this part: else it
    would be told of by whatever the class compares the value with, or by nobody, as "no" is for
    Python. Another `_target_` is Hydra's to judge before anything of it is imported.
    """
    for key, value in node.items():
        if isinstance(value, DictConfig):
            _check_kinds_of(value, f"{group}.{key}")
    values = {str(key): v for key, v in node.items() if isinstance(v, str | bool | float)}
    name = values.pop("_target_", "")
    if not values or str(name).split(".")[0] not in _TRUSTED:
        return
    try:
        own = get_object(str(name))
        is_class_of_own = isinstance(own, type) and not is_dataclass(own)
        hints = _hints(own.__init__ if is_class_of_own else own)
    except (ImportError, NameError, TypeError, ValueError):  # making the part will tell
        return
    for key, value in values.items():
        members = get_args(hints.get(key)) or (hints.get(key),)
        kinds = [kind for kind in WORDS if kind in members]
        others = [m for m in members if m not in (*kinds, NoneType) and not _is_tensor(m)]
        if kinds and not others and not is_of(set(kinds), value):
            raise UserError(f"{group}.{key} takes {WORDS[kinds[0]]}, not {value!r}")


def _is_tensor(kind: object) -> bool:
    return getattr(kind, "__name__", "") == "Tensor"


def _hints(own: Any) -> dict[str, Any]:
    """The types of what `own` takes; what only type checkers import is any object.

    Raises as `get_type_hints`.
    """
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(own, localns=unknown)
        except NameError as error:
            if error.name is None or error.name in unknown:
                raise
            unknown[error.name] = object
