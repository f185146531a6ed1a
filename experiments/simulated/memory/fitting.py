"""Whether simulated workers fit into this machine's memory."""

import copy
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bagua_algos.worker_axis.inputs import call
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.rows import CHUNK
from bagua_algos.worker_axis.stacking import Stacking, Way
from experiments.plan.plan import Plan
from experiments.simulated.memory.algorithm_trial import Taken, taken_by, trained_bytes
from experiments.simulated.memory.live_bytes import LiveBytes
from experiments.simulated.stacking import WORKERS_MEASURED, may_write_gradients, ways_to_try
from experiments.tasks.base import TaskData
from experiments.training.evaluation import batch_size
from experiments.training.step import examples, losses
from host.cores import usable_cores
from host.errors import UserError

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""A container's own, or "max"."""

KEPT = 1.6
"""What the process takes, over what tensors take at a time: glibc keeps what they free, and not all
of it serves the next ones (`kept_memory`). Measured, not derived: four models took 0.9 to 2.4 times
as much, and one of them 1.6 to 2.0 in equal runs (2 cores, `python -m experiments.bench_simulation
--counted`).
"""

_CODE_BYTES = 35_000_000
"""What libraries load when they are first used, and what Python writes to of its parent's pages:
measured as above, before the first large tensor.
"""

_EXAMPLES_MEASURED = 16
"""By which the evaluation of more is told."""


def check_memory(plan: Plan, data: TaskData) -> None:
    """Raise `UserError` where the simulated workers need more than is free: the kernel would kill
    the run, which could then say nothing.
    """
    if plan.backend.device != "cpu":
        return
    free = free_bytes()
    if free is None:
        return
    least = plan.workers * (_bytes_of(plan.model.parameters()) + trained_bytes(plan))
    needed = least if least > free else needed_bytes(plan, data)  # else no trial may fit either
    if needed > free:
        raise UserError(
            f"{plan.workers} simulated workers with model={plan.names['model']} and "
            f"algo={plan.names['algo']} need {'at least' if needed == least else 'about'} "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: take fewer workers, a "
            "smaller model or a smaller batch_size."
        )


def fitting_at_once(plans: Sequence[Plan], data: TaskData) -> int:
    """How many trainings of `plans` fit side by side, at least one: they differ in their algorithms
    alone. Raises as `needed_bytes`.
    """
    # By passes and evaluations of these kinds alone, which are the dearest to try.
    kinds = {(p.algorithm.workers_agree, p.algorithm.may_read_late): p for p in plans}
    taken = taken_by(plans)
    return _fitting(max(_needed_bytes(plan, data, taken) for plan in kinds.values()))


def fitting_alone(plan: Plan) -> int:
    """How many trainings such as that of `plan` fit side by side, at least one, where each loads
    its data for itself. Raises as `needed_bytes`.
    """
    before = _own_bytes()
    data = plan.load_data()
    own_bytes = max(0, _own_bytes() - before)
    return _fitting(needed_bytes(plan, data) + own_bytes)


def _fitting(needed: int) -> int:
    free = free_bytes()
    return 1_000 if free is None else max(1, int(0.8 * free / needed))


def _own_bytes() -> int:
    """What this process has of memory that no file holds; 0 where the kernel does not say."""
    with suppress(OSError):
        found = re.search(r"^RssAnon:\s+(\d+)", _STATUS.read_text(), re.M)
        return 1024 * int(found[1]) if found else 0
    return 0


def needed_bytes(plan: Plan, data: TaskData) -> int:
    """What the training of `plan` takes, beside what this process has by now. Raises `UserError`
    for a model that simulated workers cannot compute.
    """
    return _needed_bytes(plan, data, taken_by([plan]))


def _needed_bytes(plan: Plan, data: TaskData, taken: Taken) -> int:
    try:
        return round(KEPT * live_bytes(plan, data, taken)) + _CODE_BYTES
    except ValueError as error:
        raise UserError(str(error)) from error


def live_bytes(plan: Plan, data: TaskData, taken: Taken) -> int:
    """The most that tensors take at a time, in the phase that takes most: the trial of ways to
    compute workers, the beginning, a step, or an evaluation. By passes of one worker.
    """
    with torch.random.fork_rng(devices=[]):
        ways = ways_to_try(plan, data)
        own = {way: pass_bytes(plan, data, way) for way in ways}
        evaluated = _evaluation_bytes(plan, data, ways)
    used = [_passes_bytes(plan, way, own[way]) for way in ways]
    num_tried = min(plan.workers, WORKERS_MEASURED) if len(ways) > 1 else 0
    kept = _bytes_of(plan.model.parameters()) + trained_bytes(plan)  # weights and gradients
    tried = (kept + max(own.values())) * num_tried
    others = _frozen_bytes(plan)
    # What is measured may choose any of these ways.
    computing = others + taken.in_passes + max(used)
    evaluating = others + taken.between_steps + evaluated
    return max(tried, others + taken.at_most, computing, evaluating)


def pass_bytes(plan: Plan, data: TaskData, way: Way) -> int:
    """The most that one worker's forward and backward passes of a micro-batch take at a time, with
    the batch and the gradients.
    """
    size = min(plan.batch_size // plan.accumulate, len(data.train))
    model = StackedModel(plan.model, 1, stacking=Stacking(way=way, threads=1))
    with LiveBytes() as live:
        batch = examples(plan, data.train, np.arange(size)[None])
        losses(plan, model, batch).sum().backward()
    return live.most + sum(x.nbytes for x in batch if isinstance(x, Tensor))


def _passes_bytes(plan: Plan, way: Way, own: int) -> int:
    """Passes of all workers at a time, or of few; and the gradients of all once more, unless they
    are written where they are kept, and again where micro-batches add up.
    """
    times = 0 if _writes_in_place(plan, way) else 1 if plan.accumulate == 1 else 2
    gradients = times * plan.workers * trained_bytes(plan)
    if way in ("vmap", "parts"):  # whose passes have new gradients
        return plan.workers * (own - trained_bytes(plan)) + gradients
    at_once = 1 if way == "loop" else min(plan.workers, usable_cores())
    return at_once * own + gradients


def _writes_in_place(plan: Plan, way: Way) -> bool:
    """Whether passes write all gradients where they are kept, and not to new memory: see
    `bagua_algos.worker_axis.gradients`, and `linear` for what several workers' layers write.
    """
    are_stacked = way in ("vmap", "parts")
    dtypes_fit = plan.precision == "float32" or (plan.precision == "bfloat16" and not are_stacked)
    at_once = way != "vmap" or usable_cores() == 1
    return dtypes_fit and at_once and may_write_gradients(plan)


def _evaluation_bytes(plan: Plan, data: TaskData, ways: Sequence[Way]) -> int:
    """Of the consensus model on the larger split. Workers that differ compute by their own models,
    too, then are averaged, and compared with the mean in float64.
    """
    split = max(data.validation, data.test, key=len)
    of_worker = min(batch_size(plan, split), ceil(len(split) / plan.workers))
    num_read = plan.workers * of_worker
    num_measured = min(len(split), _EXAMPLES_MEASURED)
    model = copy.deepcopy(plan.model).eval()
    with LiveBytes() as live, torch.no_grad():
        x_b, _ = examples(plan, split, np.arange(num_measured))
        inputs = live.most / num_measured  # of an example; those of all workers are read at once
        call(model, x_b)
    forward = live.most / num_measured - inputs

    def computed(at_once: int) -> int:
        return round(inputs * num_read + forward * min(num_read, at_once))

    if plan.algorithm.workers_agree:
        return computed(CHUNK)
    own, bucket = trained_bytes(plan), min(trained_bytes(plan), plan.bucket_bytes)
    # A copy of all weights; of one worker's bucket a difference in float32, and twice in float64.
    averaged = plan.workers * own + max(computed(CHUNK), 5 * bucket)
    side_by_side = 1 if set(ways) <= {"vmap", "loop"} else usable_cores()
    return max(averaged, computed(max(CHUNK, side_by_side * of_worker)))


def _frozen_bytes(plan: Plan) -> int:
    """Of all workers."""
    return plan.workers * (_bytes_of(plan.model.parameters()) - trained_bytes(plan))


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(x.nbytes for x in tensors)


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
