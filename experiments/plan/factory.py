"""From Hydra's configuration to a plan: all objects made, all numbers checked, nothing started."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bagua_net import library
from experiments.plan import generators
from experiments.plan.kinds import check_kind
from experiments.plan.late_compiler import put_off_compiler
from experiments.plan.limits.of_pairs import check_algorithm
from experiments.plan.part import check_first, make_part
from experiments.plan.plan import Backend, Plan
from experiments.plan.schedules import check_length, scale_rates_
from experiments.plan.schema import GROUPS, Schema
from experiments.tasks.target import target_of
from host.errors import UserError, first_line
from host.gpus import find_gpus


def best_backend() -> Backend:
    """NCCL where there is a GPU, else gloo."""
    if find_gpus():
        return Backend(process_group="nccl", device="cuda")
    return Backend(process_group="gloo", device="cpu")


def make_plan(config: DictConfig, folder: Path) -> Plan:
    """Instantiate everything that `config` names; what is drawn meanwhile, such as weights or the
    order of a Dataset, follows from `seed`.

    `folder` is the run's. Raises `UserError` with one sentence for whatever cannot be.
    """
    check_first(config)
    put_off_compiler()
    generators.begin(config.seed)
    parts = {group: make_part(config[group], group) for group in GROUPS}
    parts["model"] = _with_tensors(parts["model"])
    values = {f.name: config[f.name] for f in fields(Schema) if f.name not in GROUPS}
    values |= {_FIELDS.get(group, group): part for group, part in parts.items()}
    values["names"] = dict(config.names)
    device = values.pop("device")
    accuracy, others = values.pop("target_accuracy"), values.pop("target")
    values["folder"] = folder
    for name in ("resume", "profile"):
        values[name] = None if config[name] is None else Path(str(config[name]))
    try:
        if device is not None:
            values["backend"] = replace(values["backend"], device=device)
        if values["names"]["backend"] == "auto":
            values["names"]["backend"] = values["backend"].process_group
        values["target"] = target_of(accuracy, dict(others), parts["task"].metric)
        # Tried here: a bad value shows now, and what torch imports for it is imported once.
        optimizer = _made("optim", lambda: parts["optim"](parts["model"].parameters()))
        _check_optimizer(optimizer)
        plan = Plan(**values)
        _check_schedule(_made("schedule", lambda: plan.make_schedule(optimizer)), plan)
        _check(plan, optimizer)
        check_length(lambda: plan.make_schedule(_made_anew(plan)), plan.max_steps)
        return plan
    except ValueError as error:
        raise UserError(str(error)) from error


def _check(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` for what the algorithm cannot do, and load what it needs."""
    plan.algorithm.check(plan.workers, optimizer)
    check_algorithm(plan, plan.parts)
    _check_rates(plan, optimizer)
    _check_lr_scale(plan, optimizer)
    if plan.backend.device == "cpu":
        plan.algorithm.load("cpu")  # once, before workers are forked
    if plan.cluster.jitter is not None:
        plan.cluster.jitter.factors(plan.max_steps - 1, plan.workers)
    if plan.cluster.net_plugin is not None:
        library.build()  # once, before workers are started


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    check_kind(optimizer, "optim")
    name = type(optimizer).__name__
    if not all("lr" in group for group in optimizer.param_groups):
        raise ValueError(
            f"optim: {name} has parameter groups without a learning rate, which schedules change: "
            "name it lr"
        )


def _check_schedule(schedule: object, plan: Plan) -> None:
    has = {"step": True, "state_dict": plan.checkpoint_every, "load_state_dict": plan.resume}
    for method, is_needed in has.items():
        if is_needed and not callable(getattr(schedule, method, None)):
            raise ValueError(
                f"schedule: {type(schedule).__name__} has no {method}(), which a run needs that "
                "steps, or writes or reads checkpoints: derive it from "
                "torch.optim.lr_scheduler.LRScheduler"
            )
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "schedule: ReduceLROnPlateau follows a metric, and schedules go by steps here: choose "
            "another, such as schedule=cosine"
        )


def _check_rates(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` for a first learning rate that weights in float32 cannot be changed by."""
    rate = plan.lr_scale * max(float(group["lr"]) for group in optimizer.param_groups)
    if not rate <= torch.finfo(torch.float32).max:
        raise ValueError(
            f"the learning rate is {rate:g}, with lr_scale={plan.lr_scale:g}, and float32 ends at "
            "3.4e38: lower lr_scale or optim.lr"
        )


def _check_lr_scale(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ValueError` where the schedule, which `optimizer` has, sets rates of its own."""
    if plan.lr_scale == 1:
        return
    scaled = _made_anew(plan)
    scale_rates_(scaled, plan.lr_scale)
    plan.make_schedule(scaled)
    rates, scaled_rates = (
        [float(group["lr"]) for group in own.param_groups] for own in (optimizer, scaled)
    )
    if not np.allclose(plan.lr_scale * np.array(rates), scaled_rates, rtol=1e-6, atol=0):
        raise ValueError(
            f"lr_scale={plan.lr_scale:g} multiplies the optimizer's learning rate, and the "
            "schedule sets one of its own: leave lr_scale=1 and give the schedule's rates, such "
            "as schedule.max_lr"
        )


def _made_anew(plan: Plan) -> torch.optim.Optimizer:
    return plan.make_optimizer(plan.model.parameters())


_FIELDS = {
    "algo": "algorithm",
    "data": "loading",
    "optim": "make_optimizer",
    "schedule": "make_schedule",
}


def _made(group: str, make: Callable[[], Any]) -> Any:
    """What `make` makes. Raises `UserError` where torch refuses the settings of `group`."""
    try:
        return make()
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{group}: {first_line(error)}") from error


def _with_tensors(model: Any) -> Any:
    """`model`; one of transformers', whose outputs are objects, as one that makes logits."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    if "transformers.modeling_utils.PreTrainedModel" not in kinds:
        return model
    return get_class("experiments.models.logits.Logits")(model)
