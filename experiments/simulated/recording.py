"""The course of one training of simulated workers, apart from how long it took.

How accurate a model is after so many steps does not depend on how long they take, unless its
algorithm `depends_on_timing`. So one training serves every network: its clocks run again, without
its values.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.simulated.clocks import Script
from experiments.training.result import Result
from netsim.timeline.timeline import Timeline

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training: its rows of metrics, the jobs of every step, and what it came to.

    One that diverged has no jobs and no result, and misses every target.
    """

    rows: Sequence[Row]
    script: Script
    result: Result | None

    @property
    def evaluations(self) -> list[Row]:
        """The rows that have an accuracy."""
        return [row for row in self.rows if row["kind"] == "evaluation"]

    def rows_on(self, timeline: Timeline) -> Iterator[Row]:
        """Its rows with the times and bytes of `timeline`, which is at 0; none if it diverged."""
        rows_at: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows:
            rows_at[row["step"]].append(row)
        for step, jobs in enumerate(self.script, start=1):
            timeline.replay(jobs)
            for row in rows_at[step]:
                if row["kind"] == "evaluation":
                    timeline.barrier()  # all workers wait for it
                yield row | _readings(timeline)

    def result_on(self, timeline: Timeline) -> Result:
        """What it came to, by a `timeline` that has reached its end."""
        assert self.result is not None, "a training that diverged has no result"
        return replace(self.result, **_readings(timeline))


def _readings(timeline: Timeline) -> dict[str, Any]:
    """The slowest worker's clock, and the average worker's bytes and waiting."""
    return {
        "time_s": float(timeline.time_s.max()),
        "bytes_sent": round(float(timeline.bytes_sent.mean())),
        "exposed_communication_s": float(timeline.exposed_communication_s.mean()),
    }
