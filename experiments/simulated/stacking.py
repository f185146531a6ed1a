"""How simulated workers are computed: `cluster.stacking`, by default what is measured to be the
fastest.

Values agree to rounding whichever it is. So it says nothing about the setting that a run is of, and
the run's summary names it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from bagua_algos.engine.backward import BackwardTracker
from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.script.weak_hook import nothing_came
from bagua_algos.worker_axis.inputs import each
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import WAYS, Stacking, Way
from bagua_algos.worker_axis.trial import torch_states, why_not_stacked
from experiments.plan import generators
from experiments.plan.plan import MEASURED, Plan
from experiments.tasks.base import Batch, TaskData
from experiments.training.step import examples, losses
from host.cores import usable_cores
from host.errors import UserError

WORKERS_MEASURED = 64
"""At the most. Fewer would tell another story: what 16 workers compute may fit into a cache."""
ROUNDS = 3
ENOUGH_S = 2.0
"""After which no other round begins."""
ENDLESS = 4.0
"""Who takes so many times as long as the fastest to warm up, and half of `ENOUGH_S`, is out."""
HOPELESS = 2.0
"""Who is slower than the fastest by this factor in the first round is out."""
_ALONE: dict[Way, Way] = {"parts": "vmap", "shares": "loop"}
"""What the ways of several threads are where there is one."""
PREFERRED: tuple[Way, ...] = ("parts", "vmap", "loop", "shares")
MARGIN = 0.9
"""A way has to take less than this part of an earlier one's time to be chosen, so that equals are
not told apart by chance. `parts` come first: torch's own threads, which `vmap` has, wait by
spinning, and whoever works between passes, such as a compressor, has one core less meanwhile.
"""


@dataclass(frozen=True, kw_only=True)
class StackingChoice:
    """How workers are computed, and why: the seconds of a forward and backward pass of
    `workers_measured` workers, by way; none where nothing was measured.
    """

    way: Way
    threads: int
    workers_measured: int = 0
    seconds: dict[str, float]
    refused: dict[str, str]
    """Why other ways cannot compute the model."""

    @property
    def stacking(self) -> Stacking:
        """The way and its threads."""
        return Stacking(way=self.way, threads=self.threads)

    def __str__(self) -> str:
        """Such as "workers are computed by shares, 2 threads: ..."."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        text = f"workers are computed by {self.way}, {threads}"
        if self.seconds:
            times = ", ".join(f"{way} {1e3 * s:.3g} ms" for way, s in self.seconds.items())
            text += f" (forward and backward of {self.workers_measured}: {times})"
        by_reason: dict[str, list[str]] = {}
        for way, why in self.refused.items():
            by_reason.setdefault(why, []).append(way)
        refused = [f"; not by {' or '.join(ways)}: {why}" for why, ways in by_reason.items()]
        return "".join([text, *refused])


def choose_stacking(plan: Plan, data: TaskData, known: Way | None = None) -> StackingChoice:
    """What `plan` asks for, with torch's present number of threads; measured where it leaves that
    open, unless there is a `known` way that can compute the model. Random numbers are drawn. A run
    that is resumed goes on as its checkpoint says: for it nothing is measured.

    Raises `UserError` for a way that `plan` asks for and that cannot compute the model.
    """
    threads = torch.get_num_threads()
    if known is not None and not _refused(plan, data, [known]):
        return StackingChoice(way=known, threads=threads, seconds={}, refused={})
    ways, refused = _ways(plan, data, threads)
    if len(ways) == 1 or plan.resume is not None:
        return StackingChoice(way=ways[0], threads=threads, seconds={}, refused=refused)
    workers = min(plan.workers, WORKERS_MEASURED)
    seconds = _measured(replace(plan, workers=workers), data, ways)
    return StackingChoice(
        way=_fastest(seconds),
        threads=threads,
        workers_measured=workers,
        seconds=seconds,
        refused=refused,
    )


def ways_to_try(plan: Plan, data: TaskData) -> list[Way]:
    """Those that `choose_stacking` measures with all cores, or the only one. Raises as it does."""
    return _ways(plan, data, usable_cores())[0]


def may_write_gradients(plan: Plan) -> bool:
    """Whether passes of `plan` may write gradients where the engine keeps them."""
    return plan.accumulate == 1 and not plan.algorithm.may_read_late


def told(choice: StackingChoice, model: StackedModel) -> dict[str, Any]:
    """What a record says: the fields of the choice, or only the way of a run that was resumed."""
    if model.stacking != choice.stacking:
        return asdict(model.stacking)
    return asdict(choice)


def _ways(plan: Plan, data: TaskData, threads: int) -> tuple[list[Way], dict[str, str]]:
    """The ways that `plan` leaves open, and why others that it might have meant cannot compute the
    model.
    """
    asked: list[Way] = [way for way in WAYS if plan.cluster.stacking in (MEASURED, way)]
    refused = _refused(plan, data, asked)
    ways: list[Way] = [way for way in asked if way not in refused]
    if not ways:
        others = _refused(plan, data, WAYS)
        raise UserError(
            f"cluster.stacking={asked[0]} does not do for model={plan.names['model']} "
            f"({refused[asked[0]]}): take "
            f"cluster.stacking={[way for way in WAYS if way not in others][-1]}, or {MEASURED}"
        )
    if min(threads, plan.workers) == 1:  # then they are the same as those before them
        ways = [way for way in ways if _ALONE.get(way) not in ways]
        return ways, refused
    if "shares" in ways and "loop" in ways:
        ways.remove("loop")  # a thread for each worker wastes less
    if "parts" in ways and "vmap" in ways and plan.workers >= threads:
        ways.remove("vmap")  # which would be the faster for workers that leave cores without any
    return ways, refused


def _refused(plan: Plan, data: TaskData, ways: Sequence[Way]) -> dict[str, str]:
    """Which of `ways` cannot compute the model, and why."""
    if list(ways) == ["loop"]:
        return {}
    x_b, y_b = examples(plan, data.train, np.arange(min(2, len(data.train))))
    plan.model.to(plan.backend.device)
    by_vmap, in_threads = _obstacles(plan, (each(lambda x: x.unsqueeze(0), x_b), y_b.unsqueeze(0)))
    stacked = {"vmap", "parts"}.intersection(ways)
    if stacked and by_vmap is None:
        by_vmap = why_not_stacked(plan.model, x_b)
    if plan.backend.device != "cpu":
        in_threads = "threads share one GPU"
    refused: dict[str, str] = {}
    if in_threads is not None:
        refused |= {way: in_threads for way in ways if way in _ALONE}
    if by_vmap is not None:
        refused |= dict.fromkeys(stacked, by_vmap)
    return refused


def _obstacles(plan: Plan, batch: Batch) -> tuple[str | None, str | None]:
    """What keeps `vmap`, and what keeps threads, from computing the model and the loss as the loop
    does, by two passes of one worker's batch; None: nothing that these show.
    """
    model = StackedModel(plan.model, 1, stacking=Stacking(way="loop"))
    buffers = [buffer.clone() for buffer in model.buffers()]
    versions = [parameter._version for parameter in model.parameters()]
    of_torch, of_others = torch_states(), generators.of_others()
    first = losses(plan, model, batch)
    order = "in an order that threads would change"
    if generators.of_others() != of_others:
        by_vmap = "it draws random numbers of NumPy or Python, one for all workers"
        return by_vmap, f"it draws random numbers, {order}"
    if torch_states() != of_torch:
        return None, f"it draws random numbers, {order}"
    if [parameter._version for parameter in model.parameters()] != versions:
        why = (
            "it changes a parameter in place, and autograd takes that for a change of all workers'"
        )
        return None, why
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.data = before
    is_alike = first.allclose(losses(plan, model, batch), rtol=0, atol=0, equal_nan=True)
    return None, None if is_alike else f"it comes to something else each time, {order}"


def _measured(plan: Plan, data: TaskData, ways: Sequence[Way]) -> dict[str, float]:
    """The median seconds of each way's passes, taken in turn after one that warms up."""
    batch_wb = plan.batches(data, tuple(range(plan.workers))).indices(0)
    batch = examples(plan, data.train, batch_wb)
    model = StackedModel(plan.model, plan.workers).to(plan.backend.device)
    kept = _KeptGradients(plan, model)
    threads, on_gpu = torch.get_num_threads(), plan.backend.device == "cuda"
    # One thread is timed without the time in which other programs have its core.
    clock = time.thread_time if threads == 1 and not on_gpu else time.perf_counter

    def pass_s(way: Way) -> float:
        model.stacking = Stacking(way=way, threads=threads)
        started_s = clock()
        losses(plan, model, batch).sum().backward()
        if on_gpu:
            torch.cuda.synchronize()
        took_s = clock() - started_s
        model.zero_grad()
        return took_s

    with kept:
        return median_times(ways, pass_s)


class _KeptGradients:
    """Within, a stacked model's gradients come into buckets, as those of a run do; some ways to
    compute workers write them there at once.
    """

    def __init__(self, plan: Plan, model: StackedModel) -> None:
        buckets = build_buckets(
            model.parameters(),
            num_held=plan.workers,
            world_size=plan.workers,
            bucket_bytes=plan.bucket_bytes,
        )
        self._tracker = BackwardTracker(buckets, lambda _: None)
        self._writes = may_write_gradients(plan)

    def __enter__(self) -> None:
        self._hooks = self._tracker.attach(self._after_gradient, self._may_write)

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _may_write(self) -> bool:
        return self._writes

    def _after_gradient(self, parameter: nn.Parameter) -> None:
        if self._tracker.enter():
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if not nothing_came(parameter):
            self._tracker.gradient_ready(parameter)

    def _after_backward(self) -> None:
        self._tracker.end()


def median_times(ways: Sequence[Way], pass_s: Callable[[Way], float]) -> dict[str, float]:
    """The median of what `pass_s` returns for each way, of passes in turn after one that warms up;
    of those that are left out, what they took until then. The last one left is measured once.
    """
    cold = {way: pass_s(way) for way in ways}
    endless_s = max(ENDLESS * min(cold.values()), ENOUGH_S / 2)
    good: list[Way] = [way for way in ways if cold[way] <= endless_s]
    began_s = time.monotonic()
    rounds = [{way: pass_s(way) for way in good}]
    good = [way for way in good if rounds[0][way] <= HOPELESS * min(rounds[0].values())]
    while len(good) > 1 and len(rounds) < ROUNDS and time.monotonic() - began_s < ENOUGH_S:
        rounds.append({way: pass_s(way) for way in good})
    times = {way: [r[way] for r in rounds if way in r] or [cold[way]] for way in ways}
    return {way: statistics.median(own) for way, own in times.items()}


def _fastest(seconds: dict[str, float]) -> Way:
    """In the order of `PREFERRED`, that which no later one beats by the margin."""
    best: Way = next(way for way in PREFERRED if way in seconds)
    for way in PREFERRED:
        if way in seconds and seconds[way] < MARGIN * seconds[best]:
            best = way
    return best
