"""What a run is measured by: a training clock and a count of bytes, which stand still outside
training.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from bagua_algos.communicator import Communicator


class Meter(Protocol):
    """Of one process; `time_s` in seconds, `bytes_sent` by one worker."""

    @property
    def time_s(self) -> float: ...  # noqa: D102
    @property
    def bytes_sent(self) -> int: ...  # noqa: D102

    def running(self) -> AbstractContextManager[None]:
        """Count what happens within."""
        ...

    def synchronize(self, communicator: Communicator) -> None:
        """Set every worker's clock to the slowest one's, as when all wait for it; a collective
        call.
        """
        ...

    def restore(self, time_s: float, bytes_sent: int) -> None:
        """Go on from these."""
        ...


class InterfaceMeter:
    """A real worker's: the host's clock and its interface's counter."""

    def __init__(self, read_bytes_sent: Callable[[], int]) -> None:
        self._read_bytes_sent = read_bytes_sent
        self.time_s = 0.0
        self.bytes_sent = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Meter`."""
        started_s, bytes_before = time.perf_counter(), self._read_bytes_sent()
        yield
        self.bytes_sent += self._read_bytes_sent() - bytes_before
        self.time_s += time.perf_counter() - started_s

    def synchronize(self, communicator: Communicator) -> None:
        """See `Meter`."""
        own = torch.tensor([[self.time_s]], dtype=torch.float64)
        self.time_s = communicator.all_gather(own).max().item()

    def restore(self, time_s: float, bytes_sent: int) -> None:
        """See `Meter`."""
        self.time_s, self.bytes_sent = time_s, bytes_sent
