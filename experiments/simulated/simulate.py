"""Simulated workers: the values of all in one process, their times on simulated clocks.

The training loop, the algorithms and the data are those of real workers. What is not: dropout and
other random layers draw otherwise, and an evaluation takes no time, as in a real run's record. With
device=cuda all workers are one batch on one GPU, and a rehearsal times a worker's own work on it.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.patterns import EVERY_SIZE
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.streams import AUTO, NumStreams
from bagua_algos.engine.script.elementwise import check_elementwise
from bagua_algos.fused.equal_rows import BrokenPromiseError
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan import generators
from experiments.plan.plan import Plan
from experiments.simulated.clocks import SimulatedClocks
from experiments.simulated.known import KnownMeasurements
from experiments.simulated.lengths import by_length
from experiments.simulated.memory.kept_memory import kept_memory
from experiments.simulated.pace import make_pace
from experiments.simulated.profile import Profile
from experiments.simulated.rehearsal import NUM_TOLD, REHEARSED_S, rehearse
from experiments.simulated.replay import RecordedTraining
from experiments.simulated.stacking import StackingChoice, choose_stacking, told
from experiments.tasks.base import TaskData
from experiments.training.meter import Stop
from experiments.training.metrics import MetricsRow
from experiments.training.result import DivergedError, Result
from experiments.training.trace import TraceFile
from experiments.training.train import train
from host.bounded_yaml import read_mapping
from host.cores import usable_cores
from host.errors import UserError
from host.forks.child import run_in_child_reporting
from host.strangers.regular import read_text
from netsim.timeline.compute import ComputeTimes, Constant, Straggler, Variation
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline
from netsim.timeline.transport import GLOO, Transport

PROFILE = "profile.yaml"

Answer = TypeVar("Answer")
Row = TypeVar("Row")


def simulate(
    plan: Plan,
    data: TaskData,
    on_network: Callable[[None], None],
    on_row: Callable[[MetricsRow], None],
    keep: Callable[[RecordedTraining, Profile], None] | None = None,
    known: KnownMeasurements | None = None,
) -> list[Result]:
    """Train `plan` on simulated workers; returns the one result that they have in common.

    Its profile is measured first where it names none, and written into the run's folder.

    Args:
        plan: the run.
        data: all examples.
        on_network: is called before training.
        on_row: is given every row of metrics.
        keep: is given the training, and the profile it went by.
        known: what the study of this run measures once for all of its runs.

    Raises:
        UserError: the profile is of something else.
        DivergedError: the loss is not finite.
    """
    profile = _profile_of_study(plan, data, known).save(plan.folder / PROFILE)
    on_network(None)

    def work(report: Callable[[MetricsRow | StackingChoice | str], None]) -> list[Result]:
        rows: list[MetricsRow] = []

        def on_row(row: MetricsRow) -> None:
            rows.append(row)
            report(row)

        result, clocks = train_simulated(
            plan,
            data,
            profile,
            on_row,
            report,
            choose=choose_stacking if known is None else known.stacking,
            on_progress=(lambda: None) if known is None else known.give_way,
        )
        if (remark := too_long(plan, clocks.timeline)) is not None:
            report(remark)
        if plan.trace:
            TraceFile(plan.folder).write_part(clocks.timeline.events, 0)
        if keep is not None:
            training = RecordedTraining(rows=rows, script=clocks.script, result=result)
            keep(training, profile)
        return [result]

    def on_report(told: MetricsRow | StackingChoice | str) -> None:
        if isinstance(told, MetricsRow):
            on_row(told)
        else:
            print(told, flush=True)

    return on_all_cores(plan, work, on_report)


def too_long(plan: Plan, timeline: Timeline) -> str | None:
    """A remark on an operation that lasts longer than real workers wait for a message, which one of
    several messages may survive; None: there is none.
    """
    seconds, name = timeline.longest
    if seconds <= plan.cluster.timeout_s:
        return None
    return (
        f"a worker was in one {name} for {seconds:.3g} s: real workers wait for a message no "
        f"longer than cluster.timeout_s={plan.cluster.timeout_s:g} and may have failed, simulated "
        "ones went on"
    )


def on_all_cores(
    plan: Plan, work: Callable[[Callable[[Row], None]], Answer], on_row: Callable[[Row], None]
) -> Answer:
    """What `work` returns, which is given a function that reports a row, with all cores that this
    process may use. It is done in a child if need be: a process that has used a GPU, or whose torch
    has started threads, cannot fork the next run's workers.
    """
    threads = usable_cores()
    if threads == 1 and plan.backend.device == "cpu":
        return work(on_row)

    def with_threads(report: Callable[[Row], None]) -> Answer:
        torch.set_num_threads(threads)
        gc.freeze()  # what was imported: to look through it takes as long as a step
        return work(report)

    return run_in_child_reporting(with_threads, on_row, expected=(DivergedError,))


def train_simulated(
    plan: Plan,
    data: TaskData,
    profile: Profile,
    on_row: Callable[[MetricsRow], None],
    on_stacking: Callable[[StackingChoice], None] = lambda choice: None,
    *,
    choose: Callable[[Plan, TaskData], StackingChoice] = choose_stacking,
    to_target_alone: bool = False,
    on_progress: Callable[[], None] = lambda: None,
) -> tuple[Result, SimulatedClocks]:
    """Train simulated workers by a known profile, with torch's present number of threads; returns
    the result and the clocks. `on_stacking` is told how the workers are computed, which `choose`
    says. Evaluations are as `train` makes them with `to_target_alone`, and `on_progress` is called
    as it does.

    Raises `UserError` for an optimizer that would mix stacked workers' weights, and where an
    algorithm's gradients differ and it promises that they do not.
    """
    try:
        check_elementwise(plan.make_optimizer(plan.model.parameters()), plan.workers)
    except ValueError as error:
        raise UserError(str(error)) from error
    clocks = SimulatedClocks(make_timeline(plan, profile), profile)
    communicator = StackedCommunicator(plan.workers, clocks, clocks.now_s, nodes=plan.nodes)
    with kept_memory():  # as in training
        choice = choose(plan, data)
    generators.begin(plan.seed)
    model = StackedModel(plan.model, plan.workers, stacking=choice.stacking)
    if plan.resume is None:
        on_stacking(choice)
    with kept_memory(), _promised(plan.names["algo"]):
        result = train(
            plan,
            data,
            model.to(plan.backend.device),
            communicator,
            SimulatedMeter(clocks),
            on_row,
            clocks,
            make_pace=partial(make_pace, plan, clocks),
            to_target_alone=to_target_alone,
            on_progress=on_progress,
        )
        if sum(p.nbytes for p in model.parameters()) > _COLLECTED_BYTES:
            gc.collect()
    return replace(result, stacking=told(choice, model)), clocks


_COLLECTED_BYTES = 64e6
"""Of weights. A fused optimizer refers to its own step, which refers to it, so that only Python's
collector frees it and its state; that looks seldom, and counts no bytes.
"""


@contextmanager
def _promised(algorithm: str) -> Iterator[None]:
    try:
        yield
    except BrokenPromiseError as error:
        raise UserError(f"algo={algorithm}: {error}") from error


def _profile_of_study(plan: Plan, data: TaskData, known: KnownMeasurements | None) -> Profile:
    """As `get_profile`, but measured once for the runs of a study that it serves."""
    if known is None:
        return get_profile(plan, data)
    before = given_profile(plan, data) or _profile_before(plan, data)
    return before or known.profile(lambda: get_profile(plan, data))


def get_profile(
    plan: Plan,
    data: TaskData,
    seconds: float = REHEARSED_S,
    tell: Callable[[], None] = lambda: None,
) -> Profile:
    """The one that `plan` names, else that of the run that it resumes, else measured now, for so
    many seconds at least, as `rehearse` does and tells. Raises `UserError` if it is of something
    else.
    """
    known = given_profile(plan, data) or _profile_before(plan, data)
    if known is None:
        return rehearse(plan, data, sharing=plan.cluster.sharing, seconds=seconds, tell=tell)
    for _ in range(NUM_TOLD):
        tell()
    return known


def given_profile(plan: Plan, data: TaskData) -> Profile | None:
    """The one that `plan` names, if it names one. Raises as `get_profile`."""
    if plan.profile is None:
        return None
    profile = Profile.load(plan.profile)
    profile.check(plan, data)
    return profile


def _profile_before(plan: Plan, data: TaskData) -> Profile | None:
    """By which the run that `plan` resumes was timed, so that steps take as long as they did; None
    if there is none, or workers compute otherwise now.
    """
    if plan.resume is None or not (plan.resume / PROFILE).is_file():
        return None
    before = read_mapping(read_text(plan.resume / "config.yaml"))
    for name in ("threads_per_worker", "sharing"):
        if before.get(f"cluster.{name}") != getattr(plan.cluster, name):
            return None
    try:
        profile = Profile.load(plan.resume / PROFILE)
        profile.check(plan, data)
    except UserError:  # it goes on as something else
        return None
    return profile


def make_timeline(plan: Plan, profile: Profile, net_backend: str | None = None) -> Timeline:
    """The clocks of `plan`'s workers, each as fast as `profile` says.

    `net_backend`, such as "switch", predicts a run whose workers are all on this host, behind links
    shaped by it; None: each worker has a host of its own.
    """
    variation: Variation = plan.cluster.jitter or Constant()
    if plan.cluster.straggler:
        variation = Straggler(variation=variation, slowdown=1 + plan.cluster.straggler)
    cost_model = CostModel(
        plan.net, plan.workers, transport(plan.streams, plan.pattern), backend=net_backend
    )
    return timeline_of(
        cost_model,
        profile,
        by_length(plan, profile, variation),
        threads_per_worker=plan.cluster.threads_per_worker,
        num_cores=os.cpu_count() or 1,
        num_lanes=2 if profile.kind_of_device == "cpu" else 1,  # as real workers have there
        records_events=plan.trace,
    )


def timeline_of(
    cost_model: CostModel,
    profile: Profile,
    variation: Variation,
    *,
    threads_per_worker: int,
    num_cores: int,
    num_lanes: int = 2,
    records_events: bool = False,
) -> Timeline:
    """The clocks of workers as fast as `profile` says over the network of `cost_model`; `num_cores`
    are of the host that they share, if they do. Workers on GPUs have one lane.
    """
    host_load = cost_model.world_size * threads_per_worker / num_cores
    return Timeline(
        cost_model,
        ComputeTimes(
            forward_s=profile.forward_s + profile.late_s,
            backward_s=profile.backward_s,
            bucket_ready_s=profile.ready_s,
            optimizer_s=profile.optimizer_s,
            warm_up_s=profile.warm_up_s,
            variation=variation,
        ),
        host_load=min(1.0, host_load),
        host_wait=max(0.0, 1 - 1 / host_load),
        num_lanes=num_lanes,
        records_events=records_events,
    )


def transport(streams: NumStreams, pattern: str) -> Transport:
    """gloo's constants, with the streams and the pattern of a plan.

    What real workers measure before training (`auto`) is not known to simulated ones, which refuse
    it; where a run of real workers is predicted, it counts as the default.
    """
    is_halving = pattern == "halving_doubling"
    return replace(
        GLOO,
        streams=1 if streams == AUTO else streams,
        halving_doubling_bytes=EVERY_SIZE if is_halving else 0,
    )


class SimulatedMeter:
    """A `Meter`: the slowest worker's clock, and the bytes that the average worker has sent."""

    def __init__(self, clocks: SimulatedClocks) -> None:
        self._clocks = clocks
        self._earlier_bytes = 0

    @property
    def time_s(self) -> float:
        """The slowest worker's clock, in seconds."""
        return self._clocks.now_s()

    @property
    def bytes_sent(self) -> int:
        """Bytes that the average worker has sent."""
        return self._earlier_bytes + round(float(self._clocks.timeline.bytes_sent.mean()))

    def running(self) -> AbstractContextManager[None]:
        """Let simulated time pass within."""
        return self._clocks.running()

    def standing(self) -> AbstractContextManager[None]:
        """Nothing is sent within."""
        return nullcontext()

    def stop(self, communicator: Communicator, *, goes_on: bool) -> Stop:
        """The slowest worker's clock; each goes on by its own."""
        return Stop(self.time_s, 0.0)

    def synchronize(self, communicator: Communicator) -> None:
        """Set every worker's clock to the slowest worker's."""
        self._clocks.timeline.barrier()

    def state_dict(self) -> dict[str, Any]:
        """Both, every worker's clock, in seconds, and what is still on the links."""
        timeline = self._clocks.timeline
        return {
            "time_s": self.time_s,
            "bytes_sent": self.bytes_sent,
            "clocks_s": timeline.time_s.tolist(),
            "links_free_s": timeline.links_free_s.tolist(),
        }

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Set the clocks, and count bytes from those of the earlier run. See `Timeline.go_on` for
        what begins anew; all clocks are the slowest one in a checkpoint that does not tell each,
        and links are free where it does not tell of them.
        """
        clocks_s = state.get("clocks_s", state["time_s"])
        links_free_s = np.asarray(state.get("links_free_s", []))
        self._clocks.timeline.go_on(step, np.asarray(clocks_s), links_free_s)
        self._earlier_bytes = state["bytes_sent"]
