"""Simulated steps without their values: the clocks of a recorded training on another network.

How accurate a model is after so many steps does not depend on how long they take, nor does what its
algorithm does at each of them, unless the algorithm `depends_on_timing`. So one training serves
every network: its clocks run again, without its values.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.simulated.clocks import Script
from experiments.training.metrics import MetricsRow
from experiments.training.result import Result
from netsim.timeline.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class RecordedTraining:
    """One training of simulated workers: its rows of metrics, the jobs of every step, and what it
    came to.

    One that diverged has no jobs and no result, and misses every target.
    """

    rows: Sequence[MetricsRow]
    script: Script
    result: Result | None

    @property
    def evaluations(self) -> list[MetricsRow]:
        """The rows that have an accuracy."""
        return [row for row in self.rows if row.is_evaluation]


def replay(training: RecordedTraining, timeline: Timeline) -> Iterator[MetricsRow]:
    """The rows of `training` with the times and bytes of `timeline`, which is at 0; none if it
    diverged.
    """
    rows_at: dict[int, list[MetricsRow]] = defaultdict(list)
    for row in training.rows:
        rows_at[row.step].append(row)
    for step in _steps(training.script, timeline):
        for row in rows_at[step]:
            yield replace(row, **_readings(timeline))


def result_on(training: RecordedTraining, timeline: Timeline) -> Result:
    """What `training` came to, by a `timeline` that has reached its end."""
    assert training.result is not None, "a training that diverged has no result"
    return replace(training.result, **_readings(timeline))


def step_ends_s(script: Script, timeline: Timeline) -> list[float]:
    """When the slowest worker has done each step of `script`, in seconds of `timeline`, which is at
    0.
    """
    return [float(timeline.time_s.max()) for _ in _steps(script, timeline)]


def _steps(script: Script, timeline: Timeline) -> Iterator[int]:
    """Let the steps of `script` pass one by one; yields the number of each, from 1, at its end."""
    for step, jobs in enumerate(script, start=1):
        timeline.replay(jobs)
        yield step


def _readings(timeline: Timeline) -> dict[str, Any]:
    """The slowest worker's clock, and the average worker's bytes and waiting."""
    return {
        "time_s": float(timeline.time_s.max()),
        "bytes_sent": round(float(timeline.bytes_sent.mean())),
        "exposed_communication_s": float(timeline.exposed_communication_s.mean()),
    }
