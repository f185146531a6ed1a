"""Stopwatches: how long a thread is held up, or on a GPU the stream that it enqueues work on."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Adds up the seconds from each `start` to the next `stop`; another start begins anew."""

    @property
    def seconds(self) -> float: ...  # noqa: D102

    def start(self) -> None: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102


def make_stopwatch(device: torch.device) -> Stopwatch:
    """Make a stopwatch of the calling thread, or of its current stream where `device` is a GPU."""
    return StreamStopwatch(device) if device.type == "cuda" else ThreadStopwatch()


@contextmanager
def running(stopwatch: Stopwatch) -> Iterator[None]:
    """Count what happens within."""
    stopwatch.start()
    yield
    stopwatch.stop()


class ThreadStopwatch:
    """A stopwatch by the host's clock."""

    _since_s: float
    """When the lap began."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def start(self) -> None:
        """Start a lap at this moment of the host's clock."""
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        """Add the seconds since `start` to `seconds`."""
        self.seconds += time.perf_counter() - self._since_s


class StreamStopwatch:
    """A stopwatch of the current stream of a GPU, by events. The host never waits for the GPU:
    `seconds` leaves out laps that the GPU has not finished.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._since = self._event()
        self._laps: deque[tuple[torch.Event, torch.Event]] = deque()

    @property
    def seconds(self) -> float:
        """Seconds of all laps that the GPU has finished."""
        while self._laps and self._laps[0][1].query():
            since, until = self._laps.popleft()
            self._seconds += since.elapsed_time(until) / 1e3
        return self._seconds

    def start(self) -> None:
        """Record the start of a lap in the current stream."""
        self._since.record(torch.cuda.current_stream(self._device))

    def stop(self) -> None:
        """Record the end of the lap in the current stream; the host does not wait for it."""
        until = self._event()
        until.record(torch.cuda.current_stream(self._device))
        self._laps.append((self._since, until))
        self._since = self._event()
        _ = self.seconds  # what is known is added up, or the laps of a long run would pile up

    def _event(self) -> torch.Event:
        return torch.cuda.Event(enable_timing=True)
