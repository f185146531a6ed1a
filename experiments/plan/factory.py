"""From Hydra's configuration to a plan: all objects made, all numbers checked, nothing started."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from bagua_net import library
from experiments.plan.plan import Backend, Plan
from experiments.plan.schema import GROUPS, Schema
from host.errors import UserError
from host.gpus import find_gpus


def best_backend() -> Backend:
    """NCCL where there is a GPU, else gloo."""
    if find_gpus():
        return Backend(process_group="nccl", device="cuda")
    return Backend(process_group="gloo", device="cpu")


def make_plan(config: DictConfig, folder: Path) -> Plan:
    """Instantiate everything that `config` names, the model with weights drawn from `seed`.

    `folder` is the run's. Raises `UserError` with one sentence for whatever cannot be.
    """
    torch.manual_seed(max(config.seed, 0))
    parts = {group: make_part(config[group], group) for group in GROUPS}
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
        if plan.backend.device == "cpu":
            plan.algorithm.load("cpu")  # once, before workers are forked
        if plan.cluster.jitter is not None:
            plan.cluster.jitter.factors(plan.max_steps - 1, plan.workers)
        if plan.algorithm.needs_nodes and plan.nodes is None:
            raise ValueError(
                "algo.hierarchical=true needs a network with nodes: choose net=two_sites, or "
                "algo.hierarchical=false"
            )
        if plan.backend.is_simulated and not plan.algorithm.is_simulatable:
            raise ValueError(
                f"{plan.names['algo']} is PyTorch's own code, which needs real workers: "
                "take backend=gloo, or algo=allreduce"
            )
        if plan.pattern != "ring" and not plan.algorithm.is_simulatable:
            raise ValueError(
                f"{plan.names['algo']} is PyTorch's own code, whose all-reduces are gloo's: leave "
                "pattern=ring, or take algo=allreduce"
            )
        if plan.autotune and not plan.algorithm.is_simulatable:
            raise ValueError(
                f"{plan.names['algo']} is PyTorch's own code, which makes its own buckets: leave "
                "autotune=false, or take algo=allreduce"
            )
        if plan.streams != 1 and not plan.algorithm.may_have_streams:
            raise ValueError(
                f"{plan.names['algo']}: PyTorch's hooks have one stream: leave streams=1, or take "
                "algo=torch_ddp"
            )
        if plan.cluster.net_plugin is not None:
            library.build()  # once, before workers are started
        return plan
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_resumable(plan: Plan) -> None:
    if not plan.algorithm.is_resumable and (plan.checkpoint_every or plan.resume):
        raise ValueError(
            f"{plan.names['algo']}: PyTorch does not save the state of its hook, so the run cannot "
            "be resumed: leave checkpoint_every=0"
        )


_FIELDS = {
    "algo": "algorithm",
    "data": "loading",
    "optim": "make_optimizer",
    "schedule": "make_schedule",
}


def make_part(node: DictConfig, group: str) -> Any:
    """What `node` names by its `_target_`. Raises `UserError` with one sentence if it cannot be."""
    try:
        return instantiate(node)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UserError(f"{group}: {str(cause).splitlines()[0]}") from error
