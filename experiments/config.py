"""From Hydra's configuration to a plan: all objects made, all numbers checked, nothing started."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from bagua_algos import Algorithm
from bagua_algos.communicator import Nodes
from experiments.baselines import TorchDDP
from experiments.data import Batches
from experiments.errors import UserError
from experiments.gpu import find_gpus
from experiments.tasks.base import Task, TaskData
from netsim.compute import Variation
from netsim.condition import NetworkCondition

CONFIG_DIR = Path(__file__).resolve().parents[1] / "conf"

GROUPS = ("algo", "net", "task", "model", "optim", "schedule", "backend", "cluster")
"""The groups of `conf/`; each becomes an object, by its `_target_`."""


PRECISIONS = ("float32", "bfloat16", "float16")
"""What matrices are multiplied in; weights and gradients are float32."""

DEVICES = ("cpu", "cuda")
"""Where tensors are."""

# Simulated workers are on either.
_DEVICE_OF: dict[str | None, str] = {"gloo": "cpu", "nccl": "cuda"}


@dataclass
class Schema:
    """The names and types of `config.yaml`: a misspelt key or a wrong type fails at composition."""

    algo: Any = MISSING
    net: Any = MISSING
    task: Any = MISSING
    model: Any = MISSING
    optim: Any = MISSING
    schedule: Any = MISSING
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
    precision: str = MISSING
    accumulate: int = MISSING
    clip_norm: float | None = MISSING
    lr_scale: float = MISSING
    checkpoint_every: int = MISSING
    resume: str | None = MISSING
    profile: str | None = MISSING
    trace: bool = MISSING
    device: str | None = MISSING
    names: dict[str, str] = field(default_factory=dict)


def _part(share: float, whole: int) -> int:
    """So many steps, in YAML: ${part:0.2,${max_steps}}."""
    return max(1, round(share * whole))


ConfigStore.instance().store("schema", Schema)
OmegaConf.register_new_resolver("part", _part, replace=True)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How workers talk and where their tensors are: a torch.distributed backend and a device.

    Without a process group, the workers are simulated.

    Raises:
        ValueError: a device that there is not, or that the process group does not serve.
    """

    process_group: str | None
    device: str

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {self.device}")
        needed = _DEVICE_OF.get(self.process_group, self.device)
        if self.device != needed:
            raise ValueError(
                f"device={self.device} is not where {self.process_group} moves tensors, which is "
                f"{needed}: take backend=nccl for real workers on GPUs, backend=gloo on CPUs"
            )

    @property
    def is_simulated(self) -> bool:
        """Whether one process holds all workers, and time is computed."""
        return self.process_group is None

    @property
    def has_gpu_workers(self) -> bool:
        """Whether real workers' processes enqueue what GPUs compute."""
        return self.process_group is not None and self.device == "cuda"


def best_backend() -> Backend:
    """NCCL where there is a GPU, else gloo."""
    if find_gpus():
        return Backend(process_group="nccl", device="cuda")
    return Backend(process_group="gloo", device="cpu")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a run, and what simulated ones compute with.

    Args:
        threads_per_worker: of torch.
        timeout_s: the longest wait for other workers in one collective.
        sharing: simulated workers that share a device such as this one.
        straggler: by what part of its compute time a simulated worker 0 is slower than the others.
        jitter: of simulated compute times; None: all equal.

    Raises:
        ValueError: fewer than one thread or sharer, no time at all, or a negative straggler.
    """

    threads_per_worker: int
    timeout_s: float
    sharing: int = 1
    straggler: float = 0.0
    jitter: Variation | None = None

    def __post_init__(self) -> None:
        if self.threads_per_worker < 1:
            raise ValueError(
                f"threads_per_worker must be at least 1, got {self.threads_per_worker}"
            )
        if self.sharing < 1:
            raise ValueError(f"sharing must be at least 1, got {self.sharing}")
        if not 0 <= self.straggler < math.inf:
            raise ValueError(f"straggler must be at least 0 and finite, got {self.straggler}")
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
    make_schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
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
    precision: str
    accumulate: int
    clip_norm: float | None
    lr_scale: float
    checkpoint_every: int
    folder: Path
    resume: Path | None
    resume_step: int | None = None
    """The step of the checkpoint to go on from; None: the last that there is."""
    profile: Path | None
    trace: bool

    @property
    def nodes(self) -> Nodes | None:
        """The workers of each node of the network, if it has nodes."""
        if self.net.nodes is None:
            return None
        size, ranks = self.net.nodes["size"], range(self.workers)
        return tuple(tuple(ranks[start : start + size]) for start in ranks[::size])

    def batches(self, data: TaskData, ranks: tuple[int, ...]) -> Batches:
        """The training batches of the workers `ranks`. Raises `UserError` for too few examples."""
        return Batches(
            num_examples=len(data.train),
            world_size=self.workers,
            ranks=ranks,
            batch_size=self.batch_size,
            seed=self.seed,
        )

    def __post_init__(self) -> None:
        for name in (
            *("workers", "batch_size", "max_steps", "eval_every", "log_every"),
            *("bucket_bytes", "accumulate"),
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("seed", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate={self.accumulate} micro-batches must divide "
                f"batch_size={self.batch_size}"
            )
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision}"
            )
        if not self.lr_scale > 0:
            raise ValueError(f"lr_scale must be more than 0, got {self.lr_scale}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be more than 0 or null, got {self.clip_norm}")
        if not 0 < self.target_accuracy <= 1:
            raise ValueError(
                f"target_accuracy must be a fraction in (0, 1], got {self.target_accuracy}"
            )


def make_plan(config: DictConfig, folder: Path) -> Plan:
    """Instantiate everything that `config` names, the model with weights drawn from `seed`.

    `folder` is the run's. Raises `UserError` with one sentence for whatever cannot be.
    """
    torch.manual_seed(max(config.seed, 0))
    parts = {group: _instantiate(config[group], group) for group in GROUPS}
    values = {f.name: config[f.name] for f in fields(Schema) if f.name not in GROUPS}
    values |= {_FIELDS.get(group, group): part for group, part in parts.items()}
    values["names"] = dict(config.names)
    device = values.pop("device")
    values["folder"] = folder
    for name in ("resume", "profile"):
        values[name] = None if config[name] is None else Path(config[name])
    try:
        if device is not None:
            values["backend"] = replace(values["backend"], device=device)
        if values["names"]["backend"] == "auto":
            values["names"]["backend"] = values["backend"].process_group
        # Tried here: a bad value shows now, and what torch imports for it is imported once.
        optimizer = parts["optim"](parts["model"].parameters())
        parts["schedule"](optimizer)
        plan = Plan(**values)
        plan.algorithm.check(plan.workers, optimizer)
        _check_resumable(plan)
        if isinstance(plan.algorithm, Algorithm) and plan.backend.device == "cpu":
            plan.algorithm.load("cpu")  # once, before workers are forked
        if plan.cluster.jitter is not None:
            plan.cluster.jitter.factors(plan.max_steps - 1, plan.workers)
        if getattr(plan.algorithm, "hierarchical", False) and plan.nodes is None:
            raise ValueError(
                "algo.hierarchical=true needs a network with nodes: choose net=two_sites, or "
                "algo.hierarchical=false"
            )
        if plan.backend.is_simulated and isinstance(plan.algorithm, TorchDDP):
            raise ValueError(
                f"{plan.names['algo']} is PyTorch's own code, which needs real workers: "
                "take backend=gloo, or algo=allreduce"
            )
        return plan
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_resumable(plan: Plan) -> None:
    has_hidden_state = isinstance(plan.algorithm, TorchDDP) and plan.algorithm.comm_hook_state
    if has_hidden_state and (plan.checkpoint_every or plan.resume):
        raise ValueError(
            f"{plan.names['algo']}: PyTorch does not save the state of its hook, so the run cannot "
            "be resumed: leave checkpoint_every=0"
        )


_FIELDS = {"algo": "algorithm", "optim": "make_optimizer", "schedule": "make_schedule"}


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
