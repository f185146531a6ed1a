"""Training curves of simulated runs, and what they come to on any network.

How accurate a model is after so many steps does not depend on how long they take, unless its
algorithm `depends_on_timing`. So one training serves every network: `replay` runs its clocks again,
without its values.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.config import Plan
from experiments.profile import Profile
from experiments.simulate import make_timeline, train_simulated
from experiments.tasks.base import TaskData
from experiments.train import DivergedError
from netsim.timeline import Job

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training: the accuracy after each step that was evaluated, the jobs of every step.

    One that diverged has no jobs, and misses every target.
    """

    accuracies: Mapping[int, float]
    script: Sequence[Sequence[Job]]

    def steps_to(self, target: float) -> int | None:
        """The first evaluated step with an accuracy of at least `target`."""
        reaching = (step for step, accuracy in self.accuracies.items() if accuracy >= target)
        return next(reaching, None) if self.script else None


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
    rows, script = _train(plan, data, profile)
    return Curve(accuracies={row["step"]: row["accuracy"] for row in rows}, script=script)


def replay(plan: Plan, profile: Profile, curve: Curve) -> Outcome:
    """What the run of `curve` comes to on `plan`'s network, to `plan`'s target."""
    reached = curve.steps_to(plan.target_accuracy)
    timeline = make_timeline(plan, profile)
    for step, jobs in enumerate(curve.script[:reached], start=1):
        timeline.replay(jobs)
        if step in curve.accuracies:
            timeline.barrier()  # all workers wait for an evaluation
    return Outcome(
        has_reached=reached is not None,
        accuracy=_best(a for step, a in curve.accuracies.items() if step <= (reached or math.inf)),
        num_steps=timeline.num_steps,
        time_s=float(timeline.time_s.max()),
        bytes_sent=float(timeline.bytes_sent.mean()),
        exposed_communication_s=float(timeline.exposed_communication_s.mean()),
    )


def simulate_outcome(plan: Plan, data: TaskData, profile: Profile) -> Outcome:
    """Train `plan` on its network: what an algorithm needs that `depends_on_timing`."""
    rows, script = _train(plan, data, profile)
    reaching = (i for i, row in enumerate(rows) if row["accuracy"] >= plan.target_accuracy)
    reached = next(reaching, None) if script else None
    until = rows if reached is None else rows[: reached + 1]
    last = until[-1] if until else {}  # none: it diverged before its first evaluation
    return Outcome(
        has_reached=reached is not None,
        accuracy=_best(row["accuracy"] for row in until),
        num_steps=last.get("step", 0),
        time_s=last.get("time_s", 0.0),
        bytes_sent=last.get("bytes_sent", 0),
        exposed_communication_s=last.get("exposed_communication_s", 0.0),
    )


def _train(plan: Plan, data: TaskData, profile: Profile) -> tuple[Rows, Sequence[Sequence[Job]]]:
    """Its evaluations, and the jobs of its steps: none if it diverged."""
    rows: Rows = []
    try:
        _, clocks = train_simulated(plan, data, profile, rows.append)
        script = clocks.script
    except DivergedError:
        script = []
    return [row for row in rows if row["kind"] == "evaluation"], script


def _best(accuracies: Iterable[float]) -> float:
    return max(accuracies, default=math.nan)
