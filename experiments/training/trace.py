"""A picture of a run's steps: `trace=true` writes trace.json, for ui.perfetto.dev.

The format is Chrome's trace events: a process a worker, a thread a lane. Real and simulated runs
have the same names, so that the two can be laid over each other.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from bagua_algos.communication.communicator import Operation
from host.output import ANOTHER_RUN_DIR, writing

TRACE = "trace.json"
COMPUTE = -1
"""The lane of events that compute."""


class TraceEvent(Protocol):
    """What one worker did from when to when, seconds; `lane` -1 is compute. Real or simulated."""

    @property
    def worker(self) -> int: ...  # noqa: D102
    @property
    def lane(self) -> int: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def start_s(self) -> float: ...  # noqa: D102
    @property
    def end_s(self) -> float: ...  # noqa: D102


class Span(NamedTuple):
    """A `TraceEvent` of a real worker."""

    worker: int
    lane: int
    name: str
    start_s: float
    end_s: float


class TraceRecorder:
    """The `StepObserver` of a real worker's engine, and the `Observer` of its communicator."""

    def __init__(self, worker: int) -> None:
        self.events: list[Span] = []
        self._worker = worker
        self._since_s = 0.0
        self._lanes: dict[int, int] = {}
        self._job = threading.local()

    def on_data(self, start_s: float, end_s: float) -> None:
        """Record training's wait for examples as a span of compute."""
        self._add(COMPUTE, "data", start_s, end_s)

    def on_forward(self) -> None:
        """Start timing the forward pass."""
        self._since_s = time.perf_counter()

    def on_forward_end(self) -> None:
        """Record the forward pass as a span of compute."""
        self._compute("forward")

    def on_submit(self, moment: str, bucket: int | None) -> None:
        """Record nothing: a job's span starts when its lane begins it."""

    def on_backward_end(self) -> None:
        """Record the backward pass as a span of compute."""
        self._compute("backward")

    def on_synchronized(self) -> None:
        """Record training's wait for the lanes as a span of compute."""
        self._compute("wait")

    def on_step_end(self) -> None:
        """Record the optimizer's step as a span of compute."""
        self._compute("optimizer")

    def on_job(self, moment: str, bucket: int | None) -> None:
        """Start timing a job, on the lane's thread."""
        self._job.since_s = time.perf_counter()

    def on_job_end(self, moment: str, bucket: int | None) -> None:
        """Record the job's work since its last operation as a span of its lane."""
        self._add(self._lane(), "kernel", self._job.since_s, time.perf_counter())
        self._job.since_s = math.inf

    def on_operation(self, operation: Operation) -> None:
        """Record a finished operation, and the work before it in its job, as spans of this lane."""
        ended_s = time.perf_counter()
        began_s = ended_s - operation.seconds
        job_s = getattr(self._job, "since_s", math.inf)  # of this thread; inf: it is in no job
        if job_s < began_s:
            self._add(self._lane(), "kernel", job_s, began_s)
        self._add(self._lane(), operation.name, began_s, ended_s)
        if job_s < math.inf:
            self._job.since_s = ended_s

    def _compute(self, name: str) -> None:
        ended_s = time.perf_counter()
        self._add(COMPUTE, name, self._since_s, ended_s)
        self._since_s = ended_s

    def _add(self, lane: int, name: str, start_s: float, end_s: float) -> None:
        self.events.append(Span(self._worker, lane, name, start_s, end_s))

    def _lane(self) -> int:
        """Lanes are threads, numbered as they appear."""
        return self._lanes.setdefault(threading.get_ident(), len(self._lanes))


@dataclass(frozen=True)
class TraceFile:
    """The trace of a run, written in parts, one a process."""

    run: Path

    def write_part(self, events: Iterable[TraceEvent], worker: int) -> None:
        """One process's events."""
        text = "\n".join(json.dumps(_as_json(event)) for event in events)
        with writing(self._part(worker), ANOTHER_RUN_DIR):
            self._part(worker).write_text(text)

    def join(self) -> None:
        """Make one file of the parts, times from the first event on."""
        parts = sorted(self.run.glob("trace.*.part"))
        events = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        begin_us = min((event["ts"] for event in events), default=0)
        for event in events:
            event["ts"] -= begin_us
        events += _names(events)
        with writing(self.run / TRACE, ANOTHER_RUN_DIR):
            (self.run / TRACE).write_text(json.dumps({"traceEvents": events}))
        for part in parts:
            part.unlink()

    def _part(self, worker: int) -> Path:
        return self.run / f"trace.{worker}.part"


def _as_json(event: TraceEvent) -> dict[str, object]:
    return {
        "name": event.name,
        "ph": "X",
        "pid": event.worker,
        "tid": event.lane + 1,
        "ts": 1e6 * event.start_s,
        "dur": 1e6 * (event.end_s - event.start_s),
    }


def _names(events: Iterable[dict]) -> Iterator[dict[str, object]]:
    for worker, thread in sorted({(event["pid"], event["tid"]) for event in events}):
        lane = "compute" if thread == COMPUTE + 1 else f"lane {thread - 1}"
        for what, name in (("process_name", f"worker {worker}"), ("thread_name", lane)):
            yield {"name": what, "ph": "M", "pid": worker, "tid": thread, "args": {"name": name}}
