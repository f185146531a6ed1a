"""How long somebody is held up: a thread, or on a GPU the stream that it enqueues work on."""

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
    """One of the calling threads, or of their streams where tensors are on a GPU."""
    return StreamStopwatch(device) if device.type == "cuda" else ThreadStopwatch()


@contextmanager
def running(stopwatch: Stopwatch) -> Iterator[None]:
    """Count what happens within."""
    stopwatch.start()
    yield
    stopwatch.stop()


class ThreadStopwatch:
    """Of the host's clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s = 0.0

    def start(self) -> None:
        """See `Stopwatch`."""
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        """See `Stopwatch`."""
        self.seconds += time.perf_counter() - self._since_s


class StreamStopwatch:
    """Of the current stream of a GPU, by events in it. Nobody waits for the GPU: what it has not
    come by yet is not in `seconds`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._since = self._event()
        self._laps: deque[tuple[torch.Event, torch.Event]] = deque()

    @property
    def seconds(self) -> float:
        """See `Stopwatch`."""
        while self._laps and self._laps[0][1].query():
            since, until = self._laps.popleft()
            self._seconds += since.elapsed_time(until) / 1e3
        return self._seconds

    def start(self) -> None:
        """See `Stopwatch`."""
        self._since.record(torch.cuda.current_stream(self._device))

    def stop(self) -> None:
        """See `Stopwatch`."""
        until = self._event()
        until.record(torch.cuda.current_stream(self._device))
        self._laps.append((self._since, until))
        self._since = self._event()
        _ = self.seconds  # what is known is added up, or the laps of a long run would pile up

    def _event(self) -> torch.Event:
        return torch.cuda.Event(enable_timing=True)
