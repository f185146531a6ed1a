"""What a run is measured by: a training clock and a count of bytes, which stand still outside
training.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from bagua_algos.communication.communicator import Communicator
from experiments.training.steps_ahead import StepsAhead


class Stop(NamedTuple):
    """The clocks of all workers where training stops for an evaluation. `time_s` is the furthest
    one. `late_s` is by how much this worker's is ahead of the first of those that go on: it waits
    for as long before it goes on, and so no clock has moved against another.
    """

    time_s: float
    late_s: float


class Meter(Protocol):
    """Of one process; `time_s` in seconds, `bytes_sent` by one worker, None where nothing counts
    them, or nothing did in a run that it goes on from.
    """

    @property
    def time_s(self) -> float: ...  # noqa: D102
    @property
    def bytes_sent(self) -> int | None: ...  # noqa: D102

    def running(self) -> AbstractContextManager[None]:
        """Count what happens within."""
        ...

    def standing(self) -> AbstractContextManager[None]:
        """Count the bytes of what happens within, and no time."""
        ...

    def stop(self, communicator: Communicator, *, goes_on: bool) -> Stop:
        """The clocks of all workers, which stay as they are; `goes_on`: this one takes further
        steps after an evaluation. A collective call.
        """
        ...

    def synchronize(self, communicator: Communicator) -> None:
        """Set every worker's clock to the slowest one's, as when all wait for it; a collective
        call.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """`time_s`, `bytes_sent`, and what else this meter has to know to go on."""
        ...

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from the `state_dict` of a run that has done `step` steps."""
        ...


class InterfaceMeter:
    """A real worker's: the host's clock and its interface's counter.

    What runs is only enqueued where a GPU computes it. The clock then goes on from one step to the
    next, and stands still from when somebody reads it, who waits for the GPU, to the next step.

    Args:
        read_bytes_sent: the counter; None: nothing counts.
        steps_ahead: of a GPU; None: the CPU has computed what has run.
        device: where the communicator takes tensors from.
    """

    def __init__(
        self,
        read_bytes_sent: Callable[[], int] | None,
        steps_ahead: StepsAhead | None = None,
        device: str = "cpu",
    ) -> None:
        self._read_bytes_sent = read_bytes_sent or (lambda: 0)
        self._steps_ahead = steps_ahead
        self._device = device
        self._since: tuple[float, int] | None = None
        self._time_s = 0.0
        self._bytes_sent = 0
        self._is_counted = read_bytes_sent is not None

    @property
    def time_s(self) -> float:
        """Seconds of training so far; raises `CommunicationError` where the GPU hangs."""
        self._stop()
        return self._time_s

    @property
    def bytes_sent(self) -> int | None:
        """Bytes sent in training so far, None if unknown; raises `CommunicationError` where the GPU
        hangs.
        """
        self._stop()
        return self._bytes_sent if self._is_counted else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time and bytes within; raises `CommunicationError` where the GPU hangs."""
        if self._since is None:
            self._since = time.perf_counter(), self._read_bytes_sent()
        yield
        if self._steps_ahead is None:
            self._stop()
        else:
            self._steps_ahead.add()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Count the bytes sent within."""
        self._stop()
        before = self._read_bytes_sent()
        yield
        self._bytes_sent += self._read_bytes_sent() - before

    def stop(self, communicator: Communicator, *, goes_on: bool) -> Stop:
        """The clocks of all workers, by an all-gather; raises `CommunicationError`."""
        own_s = self.time_s
        next_s = own_s if goes_on else math.inf
        own = torch.tensor([[own_s, next_s]], dtype=torch.float64, device=self._device)
        times_s, nexts_s = communicator.all_gather(own).reshape(-1, 2).T.tolist()
        return Stop(max(times_s), own_s - min(nexts_s) if goes_on else 0.0)

    def synchronize(self, communicator: Communicator) -> None:
        """Set this clock to the slowest worker's, by an all-gather; raises `CommunicationError`."""
        own = torch.tensor([[self.time_s]], dtype=torch.float64, device=self._device)
        self._time_s = communicator.all_gather(own).max().item()

    def state_dict(self) -> dict[str, Any]:
        """The clock, in seconds, and the count of bytes, None if unknown; raises as these."""
        return {"time_s": self.time_s, "bytes_sent": self.bytes_sent}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Set both, and count no bytes where those before are unknown; what the network does is no
        business of a worker's.
        """
        self._time_s, self._bytes_sent = state["time_s"], state["bytes_sent"] or 0
        self._is_counted = self._is_counted and state["bytes_sent"] is not None

    def _stop(self) -> None:
        if self._since is None:
            return
        if self._steps_ahead is not None:
            self._steps_ahead.finish()
        started_s, bytes_before = self._since
        self._since = None
        self._bytes_sent += self._read_bytes_sent() - bytes_before
        self._time_s += time.perf_counter() - started_s
