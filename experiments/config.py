"""From Hydra's configuration to a plan: all objects made, all numbers checked, nothing started."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig
from torch import nn

from bagua_algos import Algorithm
from experiments.baselines import TorchDDP
from experiments.errors import UserError
from experiments.tasks.base import Task
from netsim.condition import NetworkCondition

CONFIG_DIR = Path(__file__).resolve().parents[1] / "conf"

GROUPS = ("algo", "net", "task", "model", "optim", "backend", "cluster")
"""The groups of `conf/`; each becomes an object, by its `_target_`."""


@dataclass
class Schema:
    """The names and types of `config.yaml`: a misspelt key or a wrong type fails at composition."""

    algo: Any = MISSING
    net: Any = MISSING
    task: Any = MISSING
    model: Any = MISSING
    optim: Any = MISSING
    backend: Any = MISSING
    cluster: Any = MISSING
    workers: int = MISSING
    seed: int = MISSING
    batch_size: int = MISSING
    max_steps: int = MISSING
    eval_every: int = MISSING
    log_every: int = MISSING
    target_accuracy: float = MISSING
    stop_at_target: bool = MISSING
    bucket_bytes: int = MISSING
    names: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store("schema", Schema)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How workers talk and where their tensors are: a torch.distributed backend and a device."""

    process_group: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a run. Raises `ValueError` for fewer than one thread or no time at all."""

    threads_per_worker: int
    timeout_s: float

    def __post_init__(self) -> None:
        if self.threads_per_worker < 1:
            raise ValueError(
                f"threads_per_worker must be at least 1, got {self.threads_per_worker}"
            )
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0, got {self.timeout_s}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, ready to be launched. Raises `ValueError` for a number that no run can have."""

    names: dict[str, str]
    algorithm: Algorithm | TorchDDP
    net: NetworkCondition
    task: Task
    model: nn.Module
    make_optimizer: Callable[..., torch.optim.Optimizer]
    backend: Backend
    cluster: Cluster
    workers: int
    seed: int
    batch_size: int
    max_steps: int
    eval_every: int
    log_every: int
    target_accuracy: float
    stop_at_target: bool
    bucket_bytes: int

    def __post_init__(self) -> None:
        for name in (
            *("workers", "batch_size", "max_steps", "eval_every", "log_every"),
            "bucket_bytes",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        if not 0 < self.target_accuracy <= 1:
            raise ValueError(
                f"target_accuracy must be a fraction in (0, 1], got {self.target_accuracy}"
            )


def make_plan(config: DictConfig) -> Plan:
    """Instantiate everything that `config` names, the model with weights drawn from `seed`.

    Raises `UserError` with one sentence for whatever cannot be.
    """
    torch.manual_seed(max(config.seed, 0))
    parts = {group: _instantiate(config[group], group) for group in GROUPS}
    values = {f.name: config[f.name] for f in fields(Schema) if f.name not in GROUPS}
    values |= {_FIELDS.get(group, group): part for group, part in parts.items()}
    values["names"] = dict(config.names)
    try:
        # Tried here: a bad value shows now, and what torch imports for it is imported once.
        optimizer = parts["optim"](parts["model"].parameters())
        plan = Plan(**values)
        if isinstance(plan.algorithm, Algorithm):
            plan.algorithm.check(plan.workers, optimizer)
        return plan
    except ValueError as error:
        raise UserError(str(error)) from error


_FIELDS = {"algo": "algorithm", "optim": "make_optimizer"}


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    """`+algo=x` means `algo=x`: every group stands in the defaults list. `algo.topology=ring` means
    `algo/topology=ring`, since `conf/algo/topology/` holds the choices; `{...}` stays a value.
    """
    return [_normalized(argument) for argument in arguments]


def _normalized(argument: str) -> str:
    key, _, value = argument.removeprefix("+").partition("=")
    group = key.replace(".", "/")
    if group.split("/")[0] not in GROUPS or not (CONFIG_DIR / group).is_dir():
        return argument
    return argument if value.startswith("{") else f"{group}={value}"


def _instantiate(node: DictConfig, group: str) -> Any:
    try:
        return instantiate(node)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UserError(f"{group}: {str(cause).splitlines()[0]}") from error
