"""What a worker's process and its GPU do, as PyTorch's profiler sees it, and what it shows:

    does the host wait for the GPU within a step?        it must not
    does communication hide behind compute?              seconds of both at once

`trace=true` with GPU workers writes trace.RANK.json into the run's folder, for ui.perfetto.dev.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from experiments.training.step import STEP
from host.words import counted

HOST_WAITS = frozenset(
    f"{prefix}{what}Synchronize"
    for prefix, things in {
        "cuda": ("Stream", "Device", "Event"),
        "cu": ("Stream", "Ctx", "Event"),
    }.items()
    for what in things
) | {"cudaMemcpy"}
"""The calls of CUDA in which a thread waits for the GPU."""

WARM_UP_STEPS = 3
"""In which kernels are loaded and memory is allocated."""

Event = Mapping[str, Any]
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class DeviceSteps:
    """What `num_steps` training steps after the first ones were, in seconds.

    `host_waits` counts the calls in which a thread waited for the GPU while a step was enqueued;
    `communication_s` is the time with a kernel off the stream that computes (compression and
    communication), and `hidden_s` the part of it in which that stream computed.
    """

    num_steps: int
    host_waits: dict[str, int]
    communication_s: float
    hidden_s: float


@contextmanager
def device_trace(run: Path, rank: int) -> Iterator[None]:
    """Write what happens within to the folder of a run."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as profiler:
        yield
    profiler.export_chrome_trace(str(run / f"trace.{rank}.json"))


def read_device_trace(path: Path) -> DeviceSteps:
    """What a trace shows of the training steps.

    Raises `ValueError` where it holds too few, or no kernel of a GPU.
    """
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    steps = sorted(map(_interval, _of(events, "user_annotation", {STEP})))[WARM_UP_STEPS:]
    kernels = _of(events, "kernel")
    if not steps or not kernels:
        raise ValueError(
            f"{path} shows {counted(len(steps), 'step')} after the first {WARM_UP_STEPS}, and "
            f"{counted(len(kernels), 'kernel')}: trace a run of more steps, on a GPU"
        )
    waits = [e for cat in ("cuda_runtime", "cuda_driver") for e in _of(events, cat, HOST_WAITS)]
    inside = [e["name"] for e in waits if any(start <= e["ts"] <= end for start, end in steps)]
    # Backward and the optimizer have many kernels, the lanes few.
    compute = Counter(e["args"]["stream"] for e in kernels).most_common(1)[0][0]
    late = [e for e in kernels if e["ts"] >= steps[0][0]]
    computing = _union(_interval(e) for e in late if e["args"]["stream"] == compute)
    communicating = _union(_interval(e) for e in late if e["args"]["stream"] != compute)
    return DeviceSteps(
        num_steps=len(steps),
        host_waits=dict(Counter(inside)),
        communication_s=sum(end - start for start, end in communicating) / 1e6,
        hidden_s=_common(computing, communicating) / 1e6,
    )


def _of(events: Iterable[Event], category: str, names: Iterable[str] | None = None) -> list[Event]:
    return [e for e in events if e.get("cat") == category and (names is None or e["name"] in names)]


def _interval(event: Event) -> Interval:
    """In microseconds, as the trace has it."""
    return event["ts"], event["ts"] + event["dur"]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not meet, in order."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    return union


def _common(some: list[Interval], others: list[Interval]) -> float:
    """The time in both; each of them a `_union`."""
    total, i, j = 0.0, 0, 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        total += max(0.0, end - start)
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return total
