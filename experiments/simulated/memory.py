"""Whether simulated workers fit into this machine's memory."""

import copy
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bagua_algos.worker_axis.inputs import call
from experiments.plan.plan import Plan
from experiments.tasks.base import TaskData
from experiments.training.step import examples
from host.cores import usable_cores
from host.errors import UserError

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""A container's own, or "max"."""


def check_memory(plan: Plan, data: TaskData) -> None:
    """Raise `UserError` where the simulated workers need more than is free: the kernel would kill
    the run, which could then say nothing.
    """
    if plan.backend.device != "cpu":
        return
    free = free_bytes()
    if free is None:
        return
    states = state_bytes(plan)
    if states <= free:  # else not even a trial of the model may fit
        states = needed_bytes(plan, data)
    if states > free:
        raise UserError(
            f"{plan.workers} simulated workers with model={plan.names['model']} need "
            f"{states / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: take fewer workers, a "
            "smaller model or a smaller batch_size."
        )


def fitting_at_once(plan: Plan, data: TaskData) -> int:
    """How many trainings such as that of `plan` fit side by side, at least one."""
    free = free_bytes()
    if free is None:
        return 1_000
    return max(1, int(0.8 * free / needed_bytes(plan, data)))


def needed_bytes(plan: Plan, data: TaskData) -> int:
    """What the training of `plan` takes, beside what this process has by now."""
    return state_bytes(plan) + activation_bytes(plan, data) * _remembered_at_once(plan)


def state_bytes(plan: Plan) -> int:
    """What all workers' weights, gradients and optimizer states take, and once more as much as the
    gradients: they are made in one place and kept in another, as weights are for an evaluation.
    """
    parameters = list(plan.model.parameters())
    trained = sum(p.nbytes for p in parameters if p.requires_grad)
    each = sum(p.nbytes for p in parameters) + (2 + _states_per_weight(plan)) * trained
    return round(plan.workers * each)


def activation_bytes(plan: Plan, data: TaskData) -> int:
    """What the backward pass of one worker's micro-batch needs to remember, by a trial."""
    size = min(plan.batch_size // plan.accumulate, len(data.train))
    x_b, _ = examples(plan, data.train, np.arange(size))
    model = copy.deepcopy(plan.model).eval()  # which draws nothing, and takes a single example
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    dtype = getattr(torch, plan.precision)
    autocast = torch.autocast("cpu", dtype, enabled=dtype is not torch.float32)
    with autocast, saved_tensors_hooks(note, lambda x: x):
        outputs_b = call(model, x_b)
    del outputs_b  # until here no storage is freed and its address used again
    return sum(kept.values())


def _remembered_at_once(plan: Plan) -> int:
    """Workers whose backward passes are remembered at a time, at the least: what is measured may
    only be the fastest of those that fit.
    """
    if plan.cluster.stacking == "vmap":
        return plan.workers
    if plan.cluster.stacking == "loop":
        return 1
    return min(plan.workers, usable_cores())


def _states_per_weight(plan: Plan) -> float:
    """Elements that the optimizer keeps for each weight, by a step of a small one."""
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = plan.make_optimizer([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    kept = [x for x in optimizer.state[weight].values() if isinstance(x, Tensor)]
    return sum(x.nbytes for x in kept) / weight.nbytes


def free_bytes() -> int | None:
    """What this process can still get, at the most; None where the kernel does not say."""
    try:
        kilobytes = re.findall(r"^(?:MemAvailable|SwapFree):\s+(\d+)", _MEMINFO.read_text(), re.M)
    except OSError:
        return None
    free = 1024 * sum(map(int, kilobytes))
    with suppress(OSError, ValueError):
        free = min(free, int(_LIMIT.read_text()))
    return free
