"""The one training loop, for real and simulated workers alike."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.step_observer import StepObserver
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan import generators
from experiments.plan.plan import Plan
from experiments.tasks.base import Split, TaskData
from experiments.tasks.batches import Batches
from experiments.training.checkpoints.checkpoint import (
    BATCHES,
    STACKING,
    Checkpoints,
    check_portable,
    go_on_alike,
)
from experiments.training.distributed import Distributed, tuning
from experiments.training.evaluation import NOT_EVALUATED, Evaluation, evaluate
from experiments.training.meter import Meter, Stop
from experiments.training.metrics import MetricsRow
from experiments.training.pace import MakePace, Pace, Together
from experiments.training.result import DivergedError, Result
from experiments.training.step import Step, make_step
from host.errors import UserError, first_line


def train(
    plan: Plan,
    data: TaskData,
    model: nn.Module,
    communicator: Communicator,
    meter: Meter,
    report: Callable[[MetricsRow], None],
    observer: StepObserver | None = None,
    averager: Averager | None = None,
    make_pace: MakePace = lambda model, optimizer: Together(),
    *,
    to_target_alone: bool = False,
    on_progress: Callable[[], None] = lambda: None,
    on_clock: Callable[[float], None] = lambda time_s: None,
) -> Result:
    """Train `model` as planned, on the workers that `communicator` holds.

    Args:
        plan: the run.
        data: all examples; each worker sees its shard.
        model: on the worker axis, `[w, b, ...]` to `[w, b, ...]`.
        communicator: the other workers.
        meter: runs during steps only.
        report: is given every row of metrics.
        observer: hears of every step.
        averager: what evaluations average by; None: `communicator`.
        make_pace: says which workers take the next step.
        to_target_alone: evaluations are only to tell when the target is reached: there is none of
            the test set, nor of what each worker's model comes to by itself.
        on_progress: is called after every step, and every batch of an evaluation.
        on_clock: is told the training clock, in seconds, where steps begin, and where they go on
            after an evaluation or a checkpoint.

    Raises:
        DivergedError: the loss of a worker's batch or of an evaluation is not finite.
        CommunicationError: another worker is gone or silent.
    """
    optimizer = plan.make_optimizer(model.parameters())
    pace = make_pace(model, optimizer)
    take_step = make_step(plan, data.train, model, optimizer, communicator, observer)
    batches = plan.batches(data, communicator.ranks)
    state = _State(model, take_step, meter, batches)
    rows = _Rows(state, report, on_progress, on_clock, plan.backend.is_simulated)
    training = _Training(plan, communicator, averager or communicator, rows, not to_target_alone)
    with closing(take_step.reading):
        step, time_s, validation = training.run(pace, data.validation)
    test = NOT_EVALUATED if to_target_alone else training.evaluate(data.test, step, "test")
    result = rows.result(step, time_s, validation, test)
    _end(take_step.distributed)
    return result


def _end(distributed: Distributed) -> None:
    """Wait for what is under way, and let go of the model."""
    distributed.pause()
    distributed.close()


def _next_stop(plan: Plan, step: int) -> int:
    """The first step after `step` that an evaluation or a checkpoint follows, or the last."""
    periods = [plan.eval_every, plan.checkpoint_every or plan.eval_every]
    return min(plan.max_steps, *((step // period + 1) * period for period in periods))


def _limit(plan: Plan, step: int) -> int:
    """The step that no worker goes beyond before all have done `step` and come to the next stop:
    workers that wait for nobody stop where an evaluation finds them, and wait at checkpoints.
    """
    if not plan.algorithm.depends_on_timing:
        return _next_stop(plan, step)
    period = plan.checkpoint_every or plan.max_steps
    return min(plan.max_steps, (step // period + 1) * period)


def _metered(meter: Meter, steps: Iterator[Tensor]) -> Iterator[Tensor]:
    while True:
        with meter.running():
            loss_w = next(steps, None)
        if loss_w is None:
            return
        yield loss_w


@dataclass
class _State:
    """All that a checkpoint holds."""

    model: nn.Module
    take_step: Step
    meter: Meter
    batches: Batches

    def save(self, plan: Plan, communicator: Communicator, step: int) -> None:
        """Write a checkpoint of this process; a collective call."""
        distributed = self.take_step.distributed
        with self.meter.running():
            distributed.pause()
        if plan.algorithm.depends_on_timing:
            self.meter.synchronize(communicator)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.take_step.optimizer.state_dict(),
            "streams": communicator.streams,
            "pieces": communicator.pieces,
            "halving_doubling_bytes": communicator.halving_doubling_bytes,
            "step": self.take_step.state_dict(),
            "distributed": distributed.state_dict(),
            **generators.state_dict(plan.backend.device),
            **self.meter.state_dict(),
            "exposed_communication_s": distributed.exposed_communication_s,
            "data_wait_s": self.take_step.reading.waited_s,
            BATCHES: self.batches.state_dict(step),
        }
        if isinstance(self.model, StackedModel):
            state[STACKING] = asdict(self.model.stacking)
        _checkpoints(plan.folder, communicator).save(step, state)

    def resume(self, plan: Plan, communicator: Communicator) -> int:
        """Go on where the run that `plan` resumes, if any, wrote its last checkpoint; returns its
        step.
        """
        if plan.resume is None:
            return 0
        distributed = self.take_step.distributed
        own = _checkpoints(plan.resume, communicator)
        saved, step = own.to_resume(plan.resume_step)
        state = saved.load(step)
        go_on_alike(state, plan, self.model)
        with _told_of_another_model(plan.resume):
            self.model.load_state_dict(state["model"])
        self.take_step.optimizer.load_state_dict(state["optimizer"])
        self.take_step.load_state_dict(state["step"])
        if saved.num_processes == own.num_processes:
            generators.load_state_dict(state, plan.backend.device)
        else:
            check_portable(state, plan, saved.num_processes)
        distributed.load_state_dict(state["distributed"])
        self.meter.restore(state, step)
        distributed.exposed_communication_s = state["exposed_communication_s"]
        self.take_step.reading.waited_s = state.get("data_wait_s", 0.0)  # older ones have none
        if BATCHES in state:
            self.batches = self.batches.going_on(state[BATCHES], step)
        return step

    @contextmanager
    def unchanged(self, device: str) -> Iterator[None]:
        """Within is an evaluation that leaves no trace in a checkpoint: else it averages buffers
        and frozen parameters, and the model may draw.
        """
        drawn, model = generators.state_dict(device), self.model
        frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
        before = [(x, x.clone()) for x in [*model.buffers(), *frozen]]
        yield
        for x, value in before:
            if not torch.equal(x, value):
                x.copy_(value)
        generators.load_state_dict(drawn, device)


@contextmanager
def _told_of_another_model(folder: Path) -> Iterator[None]:
    """Raises `UserError` for weights of other names or shapes, such as an older version's."""
    try:
        yield
    except RuntimeError as error:
        [said] = str(error).replace('"', "").split("\n\t")[1:2] or [first_line(error)]
        raise UserError(
            f"resume={folder}: the model of its checkpoint is not this one "
            f"({shorten(said, 120)}). Go on with the code that wrote it, or begin anew"
        ) from error


def _checkpoints(run: Path, communicator: Communicator) -> Checkpoints:
    num_processes = communicator.world_size // len(communicator.ranks)
    return Checkpoints(run, communicator.ranks[0], num_processes)


@dataclass(frozen=True)
class _Rows:
    """Rows of metrics, as the state's meter stands."""

    state: _State
    send: Callable[[MetricsRow], None]
    on_progress: Callable[[], None]
    on_clock: Callable[[float], None]
    is_simulated: bool

    @property
    def _waits(self) -> dict[str, Any]:
        """What training has waited for, of which a simulation knows the network alone."""
        take_step = self.state.take_step
        waited_s = None if self.is_simulated else take_step.reading.waited_s
        exposed_s = take_step.distributed.exposed_communication_s
        return {"exposed_communication_s": exposed_s, "data_wait_s": waited_s}

    def report_losses(self, losses: Iterator[Tensor], step: int, log_every: int) -> int:
        """Report the losses `[w]` after each step from `step` on, the first and every
        `log_every`th; returns the last step. Raises DivergedError where one of them, or the last,
        is not finite.
        """
        loss_w = None
        for loss_w in losses:
            step += 1
            if step == 1 or step % log_every == 0:
                self.report_loss(step, loss_w)
            self.on_progress()
        if loss_w is not None:
            self._finite(step, loss_w)
        return step

    def result(self, steps: int, time_s: float, validation: Evaluation, test: Evaluation) -> Result:
        return Result(
            steps=steps,
            time_s=time_s,
            bytes_sent=self.state.meter.bytes_sent,
            **self._waits,
            validation=validation,
            test=test,
            tuning=tuning(self.state.take_step.distributed),
        )

    def report_loss(self, step: int, loss_w: Tensor) -> None:
        loss = self._finite(step, loss_w)
        self.report("step", step, self.state.meter.time_s, loss=loss)

    def _finite(self, step: int, loss_w: Tensor) -> float:
        """As `_finite_first`."""
        _ = self.state.meter.time_s  # waits for a GPU, with a limit, which reading has not
        return _finite_first(loss_w, step)

    def report_evaluation(
        self, step: int, time_s: float, validation: Evaluation, mean_step: float | None
    ) -> None:
        accuracy, loss, spread, score, own = validation
        values = {"accuracy": accuracy, "validation_loss": loss, "spread": spread, "score": score}
        self.report("evaluation", step, time_s, **values, own_score=own, mean_step=mean_step)

    def report(self, kind: str, step: int, time_s: float, **values: float | None) -> None:
        self.send(
            MetricsRow(
                kind=kind,
                step=step,
                epoch=self.state.batches.passes(step),
                time_s=time_s,
                bytes_sent=self.state.meter.bytes_sent,
                **self._waits,
                **values,
            )
        )


@dataclass(frozen=True)
class _Training:
    """The steps of a run, and the stops between them.

    Args:
        plan: the run.
        communicator: the other workers.
        averager: what evaluations average by.
        rows: report the steps and the evaluations of what trains.
        scores_own: evaluations are of each worker's model by itself, too.
    """

    plan: Plan
    communicator: Communicator
    averager: Averager
    rows: _Rows
    scores_own: bool

    def run(self, pace: Pace, examples: Split) -> tuple[int, float, Evaluation]:
        """Train from the beginning, or the checkpoint that the plan resumes, to the end; evaluate
        on `examples` in between.

        Returns the last step, the seconds on the training clock and the last evaluation.
        """
        plan, rows, state = self.plan, self.rows, self.rows.state
        done = step = state.resume(plan, self.communicator)
        validation, time_s = NOT_EVALUATED, state.meter.time_s
        while done < plan.max_steps:
            done, limit = _next_stop(plan, done), _limit(plan, done)
            rows.on_clock(state.meter.time_s)
            steps = pace(state.batches, state.take_step, step, done, limit)
            step = rows.report_losses(_metered(state.meter, steps), step, plan.log_every)
            pace.wait(done)
            if plan.evaluates_after(done):
                goes_on = step < limit or not plan.algorithm.depends_on_timing
                time_s, late_s = self._stop_clock(goes_on)
                is_of_longer_runs = done % plan.eval_every == 0
                is_kept = plan.checkpoint_every and not is_of_longer_runs
                with state.unchanged(plan.backend.device) if is_kept else nullcontext():
                    validation = self.evaluate(examples, done, "validation")
                rows.report_evaluation(done, time_s, validation, self._mean_step(pace))
                if plan.stop_at_target and plan.target.is_reached(validation.value):
                    break
                time.sleep(late_s)
            if plan.checkpoint_every and done % plan.checkpoint_every == 0:
                state.save(plan, self.communicator, done)
        return done, time_s, validation

    def _stop_clock(self, goes_on: bool) -> Stop:
        """The clock's time, and seconds by which this worker goes on later than others."""
        meter = self.rows.state.meter
        with meter.standing():
            self.rows.state.take_step.distributed.stand_still()
        return meter.stop(self.communicator, goes_on=goes_on)

    def _mean_step(self, pace: Pace) -> float | None:
        """Steps that the mean worker has done, None where all have done equally many; a collective
        call.
        """
        steps_w = pace.steps_w()
        if steps_w is None:
            return None
        steps_w = steps_w.to(self.plan.backend.device)
        with _uncounted(self.rows.state.take_step.distributed):
            self.averager.all_reduce_mean_(steps_w)
        return steps_w[0].item()

    def evaluate(self, split: Split, step: int, name: str) -> Evaluation:
        """Evaluate on `split`, the set of that name, after `step`; a collective call. Raises
        DivergedError for a loss that is not finite, and UserError for a validation set without
        labels, on all workers alike. A test set may have none, as GLUE's.
        """
        distributed = self.rows.state.take_step.distributed
        with _uncounted(distributed):
            found = evaluate(
                self.plan,
                split,
                distributed,
                self.averager,
                scores_own=self.scores_own,
                on_batch=self.rows.on_progress,
            )
        has_labels = self.plan.task.num_classes is None or not math.isnan(found.accuracy)
        if not has_labels and name == "validation":
            raise UserError(
                f"none of the {len(split)} validation examples of task={self.plan.names['task']} "
                "has a label: give them labels, since runs are compared by these examples"
            )
        if has_labels and not math.isfinite(found.loss):
            raise DivergedError(f"the loss on the {name} set is {found.loss} after step {step}")
        return found


@contextmanager
def _uncounted(distributed: Distributed) -> Iterator[None]:
    """What is waited for within is no communication of training: the clock stands still."""
    exposed_s = distributed.exposed_communication_s
    yield
    distributed.exposed_communication_s = exposed_s


def _finite_first(loss_w: Tensor, step: int) -> float:
    """The loss of the first worker held here: of worker 0, in its own process or in all's."""
    for loss in loss_w.tolist():
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} at step {step}")
    return loss_w[0].item()
