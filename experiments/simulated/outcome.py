"""What simulated trainings come to, on any network, until they reach the target."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.plan.plan import Plan
from experiments.simulated.profile import Profile
from experiments.simulated.recording import Curve, Row
from experiments.simulated.simulate import make_timeline, train_simulated
from experiments.tasks.base import TaskData
from experiments.training.result import DivergedError


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A simulated run on one network, until it reached the target, or to its end if it missed it.

    Times in seconds, bytes sent by the average worker; `accuracy` is the best until then.
    """

    has_reached: bool
    accuracy: float
    num_steps: int
    time_s: float
    bytes_sent: float
    exposed_communication_s: float

    @property
    def time_to_accuracy_s(self) -> float:
        """It is inf for a miss."""
        return self.time_s if self.has_reached else math.inf

    @property
    def step_s(self) -> float:
        """Mean over the steps; NaN for none."""
        return self.time_s / self.num_steps if self.num_steps else math.nan

    @property
    def exposed_share(self) -> float:
        """The part of the time in which compute waited for communication; NaN for no time."""
        return self.exposed_communication_s / self.time_s if self.time_s else math.nan


def train_curve(plan: Plan, data: TaskData, profile: Profile) -> Curve:
    """Train `plan` on simulated workers; one that diverges has a curve, too."""
    rows: list[Row] = []
    try:
        result, clocks = train_simulated(plan, data, profile, rows.append)
    except DivergedError:
        return Curve(rows=rows, script=[], result=None)
    return Curve(rows=rows, script=clocks.script, result=result)


def replay(plan: Plan, profile: Profile, curve: Curve) -> Outcome:
    """What the run of `curve` comes to on `plan`'s network, to `plan`'s target."""
    if curve.result is None:
        untimed = [{"step": row["step"], "accuracy": row["accuracy"]} for row in curve.evaluations]
        return _outcome(untimed, math.inf)
    rows = curve.rows_on(make_timeline(plan, profile))
    return _outcome((row for row in rows if row["kind"] == "evaluation"), plan.target_accuracy)


def simulate_outcome(plan: Plan, data: TaskData, profile: Profile) -> Outcome:
    """Train `plan` on its network: what an algorithm needs that `depends_on_timing`."""
    curve = train_curve(plan, data, profile)
    target = math.inf if curve.result is None else plan.target_accuracy
    return _outcome(curve.evaluations, target)


def _outcome(evaluations: Iterable[Row], target: float) -> Outcome:
    """What the rows come to until the first that reaches `target`."""
    best, last = math.nan, {}  # none: it diverged before its first evaluation
    for last in evaluations:
        best = max(last["accuracy"], best)  # of a NaN the other
        if last["accuracy"] >= target:
            break
    return Outcome(
        has_reached=best >= target,
        accuracy=best,
        num_steps=last.get("step", 0),
        time_s=last.get("time_s", 0.0),
        bytes_sent=last.get("bytes_sent", 0),
        exposed_communication_s=last.get("exposed_communication_s", 0.0),
    )
