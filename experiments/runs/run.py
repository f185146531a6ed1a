"""One run from its configuration to its record."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from bagua_algos.communication.patterns import EVERY_SIZE
from bagua_algos.communication.streams import AUTO
from experiments.plan.factory import make_plan
from experiments.plan.identity import plain
from experiments.plan.model_check import check_model
from experiments.plan.plan import Plan
from experiments.real.failures import RunFailedError
from experiments.real.local import launch
from experiments.real.network import ShapedNetwork, WorkersNetwork, measured_rates
from experiments.runs.progress import ProgressView, progress_view
from experiments.runs.records import RunFolder
from experiments.runs.resume import going_on
from experiments.runs.summary import CTRL_C, DISK, ENDED_EARLY, HAVE_TIMES, SIGTERM, Summary
from experiments.runs.trackers.tracker import TrackedRun, Tracking
from experiments.simulated.kept_trainings import simulate_once
from experiments.simulated.memory.fitting import check_memory
from experiments.simulated.simulate import given_profile, simulate
from experiments.tasks.base import Task, TaskData
from experiments.tasks.target import ACCURACY, Target
from experiments.training.metrics import MetricsRow, reaching
from experiments.training.result import DivergedError, Result
from experiments.training.trace import TraceFile
from host import commands
from host.cores import usable_cores
from host.errors import DiskError, Failure, Terminated, UserError
from host.gpus import placement
from host.output import limit_reached
from host.quiet import Quiet, working_in
from host.words import counted
from netsim.conditions.presets import why_unmeasured
from netsim.errors import NamespaceError


def run(
    config: DictConfig,
    folder: Path,
    overrides: Sequence[str] = (),
    study: Path | None = None,
    watch: Callable[[MetricsRow], None] | None = None,
    network: WorkersNetwork | None = None,
) -> str:
    """Plan, launch, record; returns the status that the record has.

    `overrides` are what the command line changed, for the record; `study` is the folder of the
    study that this run belongs to, if any. `watch` is given every row once it is recorded; what it
    raises ends the run. `network` is that of the configuration, if it has been begun already.

    Raises `UserError` before any worker starts, and lets through what stopped the run from
    outside, both with nothing left undone.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    plan = make_plan(config, folder)
    if not plan.backend.is_simulated:
        network = network or WorkersNetwork(plan.net, plan.workers)
    try:
        with working_in(study if plan.backend.is_simulated else None) as quiet:
            data = load_data(plan)
            start, replayed_from = _starter(plan, plain(config), study, network, quiet)
            summary = replace(known_summary(plan, data), replayed_from=replayed_from)
            recorder = Recorder(plan, plain(config), overrides, start, summary, watch=watch)
            return recorder.run(data)
    finally:
        if network is not None:
            network.end()


CROWD = 4
"""Real workers a core that are none yet."""

Start = Callable[
    [Plan, TaskData, Callable[[ShapedNetwork | None], None], Callable[[MetricsRow], None]],
    list[Result],
]
"""Runs a plan; returns the workers' results. See `experiments.real.local.launch`."""


def _starter(
    plan: Plan,
    config: dict[str, Any],
    study: Path | None,
    network: WorkersNetwork | None,
    quiet: Quiet | None,
) -> tuple[Start, str | None]:
    """What runs `plan`, and the run of its study whose values it takes, if any. Raises `UserError`
    where this host has no such network for real workers.
    """
    if not plan.backend.is_simulated:
        assert network is not None, "real workers have one"
        try:
            network.await_made()
        except (NamespaceError, ValueError) as error:
            raise UserError(str(error)) from error
        return partial(launch, network=network), None
    if study is None or quiet is None:
        return simulate, None
    return simulate_once(plan, config, study, quiet)


def crowding(plan: Plan, cores: int) -> str | None:
    """A warning for more real workers than the host's cores can serve; None for few enough."""
    is_crowded = plan.backend.process_group == "gloo" and plan.workers > CROWD * cores
    if not is_crowded:
        return None
    return (
        f"{plan.workers} workers share {counted(cores, 'core')}: their steps take far longer than "
        "on machines of their own, and backend=sim would not"
    )


class EndedEarly(Exception):
    """Raised by code that watches a run: it need not go on, for the reason that this says."""


class Recorder:
    """Starts a plan and keeps its record.

    Args:
        plan: the run.
        config: its configuration, resolved.
        overrides: what the command line changed of it.
        start: runs it.
        summary: what is known of the run before it, as `known_summary` has it and more.
        goes_on: whether the plan's folder holds its record already, to be continued.
        watch: is given every row once it is recorded.

    Raises:
        UserError: its folder holds a run already, the one that it resumes is another, or there is
            no such tracker.
    """

    def __init__(
        self,
        plan: Plan,
        config: dict[str, Any],
        overrides: Sequence[str],
        start: Start,
        summary: Summary,
        *,
        goes_on: bool = False,
        watch: Callable[[MetricsRow], None] | None = None,
    ) -> None:
        self._start = start
        self._watch = watch
        self._started_s = time.monotonic()
        self._plan, earlier, self._summary = going_on(plan, config, summary)
        run = TrackedRun(folder=plan.folder, config=config, rows=earlier)
        self._tracking = Tracking(plan.tracker, run)
        self._evaluations = [row for row in earlier if row.is_evaluation]
        if goes_on:
            self._record = RunFolder.reopen(plan.folder, config, self._summary, overrides, earlier)
            return
        self._record = RunFolder.create(plan.folder, config, self._summary, overrides)
        for row in earlier:
            self._record.log(row)

    def run(self, data: TaskData) -> str:
        """Launch; whatever happens, the record is finished and says what."""
        name = f"{self._plan.names['algo']} on {self._plan.names['net']}"
        try:
            print(f"{name}: {self._record.path}", flush=True)
            if remark := crowding(self._plan, usable_cores()):
                print(remark, flush=True)
            view = progress_view(name, self._plan.max_steps, self._plan.target.metric)
            self._train(data, view)
            if self._plan.trace and not self._plan.backend.has_gpu_workers:
                TraceFile(self._plan.folder).join()
            return self._finish("completed")
        except DivergedError as error:
            return self._finish("diverged", str(error))
        except Failure as error:
            if isinstance(error, RunFailedError) and error.details:
                print(error.details, flush=True)
            return self._finish("failed", str(error))
        except EndedEarly as end:
            self._finish(ENDED_EARLY, str(end))
            raise
        except BaseException as error:
            with suppress(DiskError):  # what has stopped the run is told, written or not
                self._finish("failed", _stopped_by(error))
            raise

    def _train(self, data: TaskData, view: ProgressView) -> None:
        def on_row(row: MetricsRow) -> None:
            commands.check_stop()
            if self._summary.first_step_s is None:
                self._add(first_step_s=time.monotonic() - self._started_s)
            self._take(row)
            view.show(row)
            if self._watch is not None:
                self._watch(row)

        # Entered after the fork: a live view has a thread.
        def on_network(network: ShapedNetwork | None) -> None:
            self._on_network(network)
            if not self._plan.backend.is_simulated:  # training waits, and its clock stands still
                self._tracking.start()
            view.__enter__()

        try:
            self._add_results(self._start(self._plan, data, on_network, on_row))
        finally:
            view.__exit__(None, None, None)

    def _add(self, **fields: Any) -> None:
        self._summary = replace(self._summary, **fields)

    def _take(self, row: MetricsRow) -> None:
        if row.is_evaluation:
            self._evaluations.append(row)
        self._record.log(row)
        self._tracking.log(row)

    def _on_network(self, network: ShapedNetwork | None) -> None:
        """None: it is simulated."""
        if network is None:
            return
        self._add(
            net_backend=network.backend,
            congestion_control=network.tcp.congestion_control,
            tcp=asdict(network.tcp),
            links=[asdict(link) for link in network.links],
        )
        if network.links:
            rates = measured_rates(network.links)
            rtts = [link.achieved_rtt_ms for link in network.links]
            self._add(
                achieved_rate_mbit=statistics.median(rates) if rates else None,
                achieved_rtt_ms=statistics.median(rtts),
            )
            print(network, flush=True)
        if unmeasured := why_unmeasured(self._plan.names["net"]):
            print(unmeasured, flush=True)

    def _add_results(self, results: list[Result]) -> None:
        first = results[0]
        self._add(
            steps=first.steps,
            steps_per_s=first.steps / first.time_s if first.time_s else None,
            final_accuracy=first.test.accuracy,
            final_loss=first.test.loss,
            final_bits_per_character=_bits_per_character(self._plan.task, first.test.loss),
            validation_accuracy=first.validation.accuracy,
            validation_loss=first.validation.loss,
            final_score=first.test.score,
            validation_score=first.validation.score,
            final_own_score=first.test.own,
            bytes_sent_per_worker=_mean_if_known([r.bytes_sent for r in results]),
            exposed_communication_s=statistics.mean(r.exposed_communication_s for r in results),
            data_wait_s=_mean_if_known([r.data_wait_s for r in results]),
            spread=first.test.spread,
            **_transport(self._plan, first),
        )

    def _finish(self, status: str, reason: str | None = None) -> str:
        target = self._plan.target
        reached = reaching(self._evaluations, target) if status in HAVE_TIMES else None
        self._add(
            time_to_accuracy_s=None if reached is None else reached.time_s,
            own_score_at_target=None if reached is None else reached.own_score,
            status=status,
            reason=reason,
            duration_s=time.monotonic() - self._started_s,
        )
        self._record.finish(self._summary)
        self._tracking.finish(self._summary)
        print(f"{status}{': ' + reason if reason else ''}", flush=True)
        return status


def load_data(plan: Plan) -> TaskData:
    """The data of a run. Raises `UserError` where it cannot be run here, whatever its network."""
    try:
        if plan.backend.device == "cuda":
            placement(plan.workers)  # raises
        data = plan.load_data()
        plan.batches(data, (0,))
        if plan.backend.is_simulated:
            given_profile(plan, data)  # raises
        check_model(plan, data)
        if plan.backend.is_simulated:
            check_memory(plan, data)
    except ValueError as error:
        raise UserError(str(error)) from error
    return data


def _bits_per_character(task: Task, loss: float) -> float | None:
    """Of a loss in nats; None where the task's labels are not characters."""
    return loss / math.log(2) if task.labels_are_characters else None


def _mean_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def known_summary(plan: Plan, data: TaskData) -> Summary:
    """What is known of a run before it, by its plan and its data."""
    gpu, is_shared = _gpus(plan)
    return Summary(
        algo=plan.names["algo"],
        net=plan.names["net"],
        task=plan.names["task"],
        model=plan.names["model"],
        optim=plan.names["optim"],
        backend=plan.names["backend"],
        gpu=gpu,
        shared_gpu=is_shared,
        workers=plan.workers,
        seed=plan.seed,
        **_target(plan.target),
        lr_scale=plan.lr_scale,
        asked_rate_mbit=plan.net.rate_mbit,
        streams=_given_streams(plan),
        net_plugin=plan.cluster.net_plugin,
        evaluated_model="average of the workers' models",
        resumed_from=None if plan.resume in (None, plan.folder) else str(plan.resume.absolute()),
        shares=_shares(plan, data),
    )


def _target(target: Target) -> dict[str, Any]:
    if target.metric == ACCURACY:
        return {"target_accuracy": target.value}
    return {"metric": target.metric, "target_score": target.value}


def _shares(plan: Plan, data: TaskData) -> dict[str, Any] | None:
    shares = plan.shares(data.train)
    if shares is None:
        return None
    of = "sources" if plan.loading.partition == "by_source" else "classes"
    return {"of": of, "counts": shares.counts.tolist()}


def _transport(plan: Plan, result: Result) -> dict[str, Any]:
    """How workers were connected; of simulated ones, also how they were computed."""
    if plan.backend.is_simulated:
        is_halving = plan.pattern == "halving_doubling"
        pattern = {"halving_doubling_bytes": EVERY_SIZE if is_halving else 0}
        return {**pattern, "stacking": result.stacking}
    return {
        "streams": result.streams,
        "stream_trial": result.stream_trial and asdict(result.stream_trial),
        "pieces": result.pieces,
        "halving_doubling_bytes": result.halving_doubling_bytes,
        "pattern_trial": result.pattern_trial and asdict(result.pattern_trial),
        "tuning": result.tuning and result.tuning.table(),
    }


def _given_streams(plan: Plan) -> int | None:
    """None: they are measured."""
    return None if plan.streams == AUTO else plan.streams


def _gpus(plan: Plan) -> tuple[str | None, bool]:
    """Their model, and whether workers share one."""
    if plan.backend.device == "cpu":
        return None, False
    gpus = placement(1 if plan.backend.is_simulated else plan.workers)
    return gpus.models, gpus.is_shared


def _stopped_by(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            return CTRL_C
        case Terminated():
            return SIGTERM
        case DiskError():
            return f"{DISK}{error}"
        case UserError():
            return str(error)
        case OSError() if said := limit_reached(error):
            return f"{DISK}{said}"
    return f"stopped by {type(error).__name__}: {error}"
