"""What simulated trainings come to, on any network, until they reach the target."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from experiments.plan.plan import Plan
from experiments.simulated.profile import Profile
from experiments.simulated.replay import RecordedTraining, replay
from experiments.simulated.simulate import make_timeline, train_simulated
from experiments.simulated.stacking import StackingChoice, choose_stacking
from experiments.tasks.base import TaskData
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, time_to_target
from experiments.training.result import DivergedError


@dataclass(frozen=True, kw_only=True)
class SimulatedOutcome:
    """A simulated run on one network, until it reached the target, or to its end if it missed it.

    Times in seconds, steps of the mean worker and bytes sent by it; `score` is the best until then.
    One that diverged has missed the target; its times and bytes are NaN where its clocks did not
    run. `reached_s`: of `time_to_target`, somewhat before `time_s`, which is that of an evaluation.
    """

    has_reached: bool
    reached_s: float
    score: float
    num_steps: float
    time_s: float
    bytes_sent: float
    exposed_communication_s: float
    has_diverged: bool = False

    @property
    def time_to_accuracy_s(self) -> float:
        """It is inf for a miss."""
        return self.reached_s if self.has_reached else math.inf

    @property
    def step_s(self) -> float:
        """Mean over the steps; NaN for none."""
        return self.time_s / self.num_steps if self.num_steps else math.nan

    @property
    def exposed_share(self) -> float:
        """The part of the time in which compute waited for communication; NaN for no time."""
        return self.exposed_communication_s / self.time_s if self.time_s else math.nan


_BEFORE = MetricsRow(kind="evaluation", step=0, time_s=math.nan, exposed_communication_s=math.nan)
"""The row of a run that diverged before its first evaluation."""


def record_training(
    plan: Plan, data: TaskData, profile: Profile, stacking: StackingChoice | None = None
) -> RecordedTraining:
    """Train `plan` on simulated workers, computed as `stacking` if that is known; one that diverges
    is recorded, too. Evaluations are made only to tell when the target is reached.
    """
    rows: list[MetricsRow] = []
    choose = choose_stacking if stacking is None else lambda plan, data: stacking
    try:
        result, clocks = train_simulated(
            plan, data, profile, rows.append, choose=choose, to_target_alone=True
        )
    except DivergedError:
        return RecordedTraining(rows=rows, script=[], result=None)
    return RecordedTraining(rows=rows, script=clocks.script, result=result)


def outcome_on(plan: Plan, profile: Profile, training: RecordedTraining) -> SimulatedOutcome:
    """What the run of `training` comes to on `plan`'s network, to `plan`'s target. Of one that
    diverged nobody knows the clocks there.
    """
    if training.result is None:
        unknown = dict.fromkeys(("time_s", "bytes_sent", "exposed_communication_s"), math.nan)
        return replace(outcome_there(plan, training), **unknown)
    rows = replay(training, make_timeline(plan, profile))
    return _outcome((row for row in rows if row.is_evaluation), plan.target)


def outcome_there(plan: Plan, training: RecordedTraining) -> SimulatedOutcome:
    """What the run of `training`, which was of `plan` on its own network, comes to."""
    has_diverged = training.result is None
    target = replace(plan.target, value=None) if has_diverged else plan.target
    return replace(_outcome(training.evaluations, target), has_diverged=has_diverged)


def _outcome(evaluations: Iterable[MetricsRow], target: Target) -> SimulatedOutcome:
    """What the rows come to until the first that reaches `target`."""
    best, rows = math.nan, [_BEFORE]
    for last in evaluations:
        assert last.value is not None, "an evaluation has a score"
        rows.append(last)
        best = target.better(last.value, best)
        if target.is_reached(last.value):
            break
    reached_s, last = time_to_target(rows, target), rows[-1]
    return SimulatedOutcome(
        has_reached=reached_s is not None,
        reached_s=math.nan if reached_s is None else reached_s,
        score=best,
        num_steps=last.steps_done,
        time_s=last.time_s,
        bytes_sent=math.nan if last.bytes_sent is None else last.bytes_sent,
        exposed_communication_s=last.exposed_communication_s or 0.0,
    )
