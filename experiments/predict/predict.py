"""Step time and throughput of models too large to train here, without weights.

Workers are alike and compute at one pace. Kernels of communication take nothing from those of
compute.

What predicts takes seconds to import. It is imported once the command line was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from experiments.plan.compose import compose_config
from experiments.plan.limits.of_classes import get
from experiments.plan.overrides import read_overrides, read_word, values_of
from experiments.plan.part import check_first
from experiments.predict.cluster import WORDS as CLUSTER_WORDS
from experiments.predict.cluster import cluster_of
from experiments.predict.device import Device
from experiments.predict.load_model import is_of_model, model_config, trace_model
from experiments.predict.step_trace import StepTrace
from host.errors import UserError
from host.words import counted
from netsim.conditions.condition import NetworkCondition
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline
from netsim.timeline.transport import NCCL

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from bagua_algos.communication.communicator import Nodes
    from bagua_algos.engine.algorithm import Algorithm
    from experiments.plan.plan import Plan
    from experiments.predict.dry_run import DryRun

MAX_STEPS = 10_000
"""More than were asked for, until two rounds of a background have ended."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is to be predicted; `trace` has the batch of each worker. `nodes` are for an algorithm
    that is hierarchical, `inside` is what links their workers (see `Device.link_gb_per_s`).
    `num_steps` pass after the algorithm's early steps: see `predict`.
    """

    trace: StepTrace
    device: Device
    algorithm: Algorithm
    net: NetworkCondition
    make_optimizer: Callable[..., Optimizer]
    num_workers: int
    bucket_bytes: int
    precision: str = "float32"
    num_steps: int = 100
    nodes: Nodes | None = None
    inside: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """Means over the steps of a steady period: seconds of a step, and those of them in which
    compute (forward, backward, the optimizer) goes on; examples per second of all workers; bytes
    on the wire that worker 0 sends in a step.

    `first_s` is what the first step that communicates takes more than the last one that does the
    same: its connections are new, and their windows small. None where no later step does the same.
    """

    step_s: float
    compute_s: float
    examples_per_s: float
    bytes_sent: float
    first_s: float | None = None

    @property
    def exposed_share(self) -> float:
        """The part of a step for which compute waits: communication, its kernels, the algorithm's
        own work.
        """
        return 1 - self.compute_s / self.step_s


def predict(case: Case) -> StepPrediction:
    """Let the algorithm's early steps pass, and `num_steps` after them, or two rounds where these
    are more; of those after the early ones the last whole periods count (`steady_steps`). Rounds
    of the background are periods of their own.

    Raises:
        UserError: the device does not compute in that precision, or has no such link; the
            background has no two rounds in `MAX_STEPS`.
        ValueError: the algorithm cannot train so many workers.
    """
    from experiments.predict.dry_run import DryRun, meta_buckets

    buckets = meta_buckets(case.trace.parameters, case.num_workers, case.bucket_bytes)
    compute = case.device.compute_times(case.trace, buckets, case.precision)
    transport = replace(NCCL, bytes_per_s=1e9 * case.device.link_gb_per_s(case.inside))
    costs = CostModel(case.net, case.num_workers, transport)
    timeline = Timeline(costs, compute, num_lanes=1)
    dry_run = DryRun(
        case.algorithm,
        buckets,
        case.make_optimizer,
        timeline,
        memory_rate=case.device.memory_rate,
        nodes=case.nodes,
    )
    marks = [(0.0, 0.0, 0.0)]
    early, steps_per_round = case.algorithm.num_early_steps, case.algorithm.steps_per_round
    least = early + max(case.num_steps, 2 * steps_per_round)
    with closing(dry_run) as run:
        while len(marks) <= least or _lacks_rounds(run, len(marks) - 1 - least, marks[-1][0]):
            run.step()
            marks.append((float(timeline.time_s.max()), run.optimizer_s, timeline.bytes_sent[0]))
    first, last = _steady(run, early)
    pairs = zip(marks[last], marks[first], strict=True)
    step_s, optimizer_s, sent = (float(after - before) / (last - first) for after, before in pairs)
    return StepPrediction(
        step_s=step_s,
        compute_s=compute.forward_s + compute.backward_s + optimizer_s,
        examples_per_s=case.num_workers * case.trace.batch_size / step_s,
        bytes_sent=sent,
        first_s=_first_s(run.script, [end_s for end_s, _, _ in marks], [b for _, _, b in marks]),
    )


def _first_s(script: Sequence[Any], ends_s: Sequence[float], sent: Sequence[float]) -> float | None:
    """See `StepPrediction`; `ends_s` and `sent` begin with what was before the first step."""
    first = next((i for i in range(len(script)) if sent[i + 1] > sent[i]), None)
    if first is None:
        return None
    last = max(i for i, did in enumerate(script) if did == script[first])
    if last == first:
        return None
    return float((ends_s[first + 1] - ends_s[first]) - (ends_s[last + 1] - ends_s[last]))


def _lacks_rounds(run: DryRun, num_more: int, now_s: float) -> bool:
    """Whether two rounds of the background have still to end, after `num_more` steps more than were
    asked for; a round begins when the one before has ended.
    """
    if not run.uses_background or len(run.rounds_begun) > 2:
        return False
    if num_more >= MAX_STEPS:
        raise UserError(
            f"no two rounds of averaging beside training end in {now_s:,.1f} s, which are "
            f"{MAX_STEPS:,} steps more than max_steps: choose a shorter algo.interval_ms"
        )
    return True


def _steady(run: DryRun, early: int) -> tuple[int, int]:
    """Before which step the mean begins, and before which it ends."""
    if run.uses_background:
        begun = run.rounds_begun
        return begun[-1 - (len(begun) - 1) // 2], begun[-1]
    last = len(run.script)
    return last - steady_steps(run.script[early:]), last


def steady_steps(script: Sequence[Any]) -> int:
    """How many steps at the end of `script` to take the mean of: whole periods that fill its second
    half as far as they can, or all of that half where nothing repeats itself.
    """
    half = max(len(script) // 2, 1)
    for period in range(1, half + 1):
        if all(script[i] == script[i - period] for i in range(len(script) - half, len(script))):
            return half // period * period
    return half


_OF_RUNS = {
    "streams": 1,
    "pattern": "ring",
    "pieces": None,
    "autotune": False,
    "resume": None,
    "checkpoint_every": 0,
    "trace": False,
    "tracker": None,
    "cluster.sharing": 1,
    "cluster.threads_per_worker": 1,
    "cluster.net_plugin": None,
}
"""What a user may believe to count in a prediction, or to leave files, with its usual value."""


def case_of(overrides: Sequence[str]) -> Case:
    """What a command line asks for. Raises `UserError` with one sentence for what cannot be."""
    read_overrides(overrides)  # refuses what is none
    own = {key: text for key, text in values_of(overrides).items() if _is_own(key)}
    if "device" in own and "profile" in own:
        raise UserError("device and profile both name the device: leave one of them out")
    named = own.get("device", own.get("profile"))
    if not named:
        raise UserError("device is missing: choose one, such as device=v100")
    device = Device.load(named)
    model_config(own)
    config = compose_config([text for text in overrides if not _is_own(read_word(text).key)])
    _check_counts(config, values_of(overrides).get("backend"))
    cluster = cluster_of(own, has_nodes=get(config.net, "nodes") is not None)
    if cluster is not None:
        cluster.place(config)
        _check_workers(values_of(overrides).get("workers"), config.workers, own["nodes"])
    if config.cluster.get("straggler") or config.cluster.get("jitter"):
        raise UserError("workers are alike here: leave cluster.straggler=0 and cluster.jitter=null")
    check_first(config)
    from experiments.plan.factory import make_plan

    plan = make_plan(config, Path())
    if plan.accumulate > 1:
        raise UserError("a step has one batch here: leave accumulate=1, and choose batch_size")
    device.link_gb_per_s(own.get("inside"))
    device.shares_of(plan.precision)
    trace = trace_model(own, plan.batch_size)
    return Case(
        trace=trace,
        device=device,
        algorithm=_algorithm(plan, trace),
        net=plan.net,
        make_optimizer=plan.make_optimizer,
        num_workers=plan.workers,
        bucket_bytes=plan.algorithm.own_bucket_bytes or plan.bucket_bytes,
        precision=plan.precision,
        num_steps=plan.max_steps,
        nodes=plan.nodes,
        inside=own.get("inside"),
    )


def _check_counts(config: DictConfig, backend: str | None) -> None:
    """Raise `UserError` for a setting of `_OF_RUNS`, and a back end that the user has named."""
    for key, usual in _OF_RUNS.items():
        value = OmegaConf.select(config, key, default=usual)
        if value != usual:
            raise UserError(
                f"{key}={_text(value)} changes nothing in a prediction: leave {key}={_text(usual)}"
            )
    if backend not in (None, "nccl"):
        raise UserError(f"predictions are of NCCL's operations: leave out backend={backend}")


def _text(value: object) -> str:
    """As on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_workers(given: str | None, of_nodes: int, nodes: str) -> None:
    if given not in (None, str(of_nodes)):
        raise UserError(
            f"workers={given} and nodes={nodes}, which are {of_nodes} workers, do not agree: leave "
            "one of them out"
        )


def _is_own(key: str) -> bool:
    """Whether a word is of predictions alone; `profile` is another name of `device`."""
    return key in ("device", "profile", *CLUSTER_WORDS) or is_of_model(key)


def _algorithm(plan: Plan, trace: StepTrace) -> Algorithm:
    counterpart = plan.algorithm.counterpart(trace.buffer_bytes)
    if counterpart is None:
        raise UserError(
            f"{plan.names['algo']} is PyTorch's own hook, whose operations are not known here: "
            "take algo=power_sgd, or algo=allreduce algo.wire=bf16"
        )
    return counterpart


def _beside(result: StepPrediction) -> str:
    if not result.bytes_sent:
        return "nothing is sent"
    if result.first_s is None:
        return "no later step does the same as the first that communicates, to compare it with"
    more_ms = round(1e3 * result.first_s, 1) + 0.0  # -0.0 is 0.0
    return (
        f"the first step that communicates takes {more_ms:,.1f} ms more, while TCP's windows "
        "open; making the connections comes on top, and is not known"
    )


def describe(case: Case, result: StepPrediction) -> str:
    """What the command line prints."""
    trace, work = case.trace, case.trace.forward_flops + case.trace.backward_flops
    return (
        f"predicted: {trace.model}, batches of {trace.batch_size}, on "
        f"{counted(case.num_workers, 'worker')} ({case.device.device}, {case.precision})\n"
        f"step time              {1e3 * result.step_s:,.1f} ms\n"
        f"examples/s             {result.examples_per_s:,.0f}\n"
        f"exposed communication  {result.exposed_share:.1%} of the step\n"
        f"sent by worker 0       {result.bytes_sent / 1e6:,.1f} MB a step\n"
        f"steady state           {_beside(result)}\n"
        f"model                  {trace.num_parameters / 1e6:,.1f} M parameters, "
        f"{work / trace.batch_size / 1e9:,.1f} GFLOPs an example, forward and backward\n"
        f"compute                {1e3 * result.compute_s:,.1f} ms: "
        f"{case.device.shares_of(case.precision).basis}"
    )
