"""Streams and events of a GPU that is not there: they write down what is enqueued, and are done
when a test says so.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DEVICE = torch.device("cuda", 0)


class FakeEvent:
    def __init__(self, cuda: "FakeCuda", enable_timing: bool = False) -> None:
        self.cuda = cuda
        self.name = f"event {cuda.number()}"
        self.is_timed = enable_timing
        self.at_s: float | None = None

    def record(self, stream: "FakeStream") -> None:
        self.at_s = self.cuda.now_s
        self.cuda.log.append((stream.name, "record", self.name))

    def query(self) -> bool:
        return self.cuda.is_done

    def elapsed_time(self, until: "FakeEvent") -> float:
        assert self.is_timed and until.is_timed
        assert self.at_s is not None and until.at_s is not None
        return 1e3 * (until.at_s - self.at_s)


class FakeStream:
    def __init__(self, cuda: "FakeCuda", name: str) -> None:
        self.cuda = cuda
        self.name = name

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.log.append((self.name, "wait for", event.name))

    def wait_stream(self, stream: "FakeStream") -> None:
        self.cuda.log.append((self.name, "wait for all of", stream.name))


class FakeCuda:
    """What `torch.cuda` is for the code under test."""

    def __init__(self, monkeypatch) -> None:
        self.log: list[tuple[str, str, str]] = []
        self.is_done = True
        self.now_s = 0.0
        self._num_events = 0
        self._compute = FakeStream(self, "compute")
        self._current = threading.local()
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(self, "lane"))
        monkeypatch.setattr(torch.cuda, "Event", lambda **kinds: FakeEvent(self, **kinds))
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    def number(self) -> int:
        self._num_events += 1
        return self._num_events

    def current_stream(self, device: torch.device | None = None) -> FakeStream:
        return getattr(self._current, "stream", self._compute)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self._current.stream = stream
        yield
        del self._current.stream
