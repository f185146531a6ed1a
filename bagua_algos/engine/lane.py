"""The communication lane of one worker: a thread, and on a GPU a stream, where jobs run first in,
first out.

Compute goes on while a job waits for the network: torch's collectives and our kernels release the
GIL.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import torch

from bagua_algos.communication.communicator import CommunicationError, Communicator, named_workers
from bagua_algos.communication.threads.job_thread import JobThread

_SLICES = 20
"""In which a job is waited for."""


class CommunicationLane:
    """Runs submitted jobs in order beside the caller's compute.

    Args:
        communicator: for the jobs of this lane only.
        device: where the tensors live; on a CUDA device jobs run on a stream of their own.
        timeout_s: the longest that `wait` waits for one job.
    """

    def __init__(self, communicator: Communicator, device: torch.device, timeout_s: float) -> None:
        self.communicator = communicator
        self.failure: BaseException | None = None
        """What the first failed job raised; no later one is tried."""
        self._timeout_s = timeout_s
        self._device = device
        # Of high priority: short kernels that others wait for go before those of backward.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._enqueued: torch.Event | None = None  # on a GPU: what a job has left to be computed
        self._thread = JobThread()
        self._pending: deque[tuple[str, Future[None]]] = deque()
        self._held: tuple[str, Callable[[], None]] | None = None

    def submit(self, label: str, job: Callable[[], None], *, by_caller: bool = False) -> None:
        """Run `job` after all earlier ones and, on a GPU, after the compute enqueued so far.

        With `by_caller`, which is for the CPU, the caller is about to `wait`, and does the job
        itself there where no other is under way: two threads that wake each other take longer than
        a short job. The job has a limit of time of its own.
        """
        self._release()
        if by_caller and self._stream is None and self.is_idle:
            self._held = label, job
            return
        while self._pending and _succeeded(self._pending[0][1]):
            self._pending.popleft()  # where nobody ever waits they would pile up
        ready = torch.cuda.current_stream(self._device).record_event() if self._stream else None
        self._pending.append((label, self._thread.submit(partial(self._run, job, ready))))

    def at_end(self, before: Callable[[], None], after: Callable[[float], None]) -> None:
        """When the process ends before `close`, call `before`, and `after` the job that is under
        way, with the `time.monotonic()` until which the end may wait.
        """
        self._thread.at_end(before, after)

    @property
    def is_idle(self) -> bool:
        """Whether every job is done, well or not."""
        # The futures first: each has recorded its event when it is done.
        is_enqueued = all(future.done() for _, future in self._pending) and self._held is None
        return is_enqueued and (self._enqueued is None or self._enqueued.query())

    def run_held(self) -> None:
        """Do the job that was left to the caller, if there is one. Raises what it raises."""
        if self._held is not None:
            (_, job), self._held = self._held, None
            self._run(job, None)

    def wait(self) -> None:
        """Wait until all jobs are done. On a GPU the caller's stream waits; the caller only until
        the jobs are enqueued.

        Raises what the first failed job raised, or `CommunicationError` after `timeout_s`.
        """
        self.run_held()
        while self._pending:
            label, future = self._pending.popleft()
            try:
                if not _ends(future, self._timeout_s):
                    awaited = self.communicator.awaited
                    self.failure = CommunicationError(
                        f"{label} has not finished within {self._timeout_s:g} s"
                        + (f": it waits for {named_workers(awaited)}" if awaited else "")
                    )
                    raise self.failure
                future.result()
            except KeyboardInterrupt:
                self.failure = CommunicationError(f"the wait for {label} was interrupted")
                raise
        if self._stream:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def close(self) -> None:
        """Drop what has not begun and end the thread once its current job is done. Where all is
        done, and well, the connections may serve another lane.
        """
        if self.is_idle and self.failure is None:
            self.communicator.close()
        self._held = None
        self._thread.close()

    def _release(self) -> None:
        """Another job comes after the one that the caller was to do."""
        if self._held is not None:
            held, self._held = self._held, None
            self.submit(*held)

    def _run(self, job: Callable[[], None], ready: torch.Event | None) -> None:
        if self.failure is not None:
            # The other workers are out of step by now: one more collective would only hang.
            raise CommunicationError(f"not tried after: {self.failure}")
        try:
            if self._stream is None:
                job()
            else:
                assert ready is not None
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(ready)
                    job()
                    self._enqueued = self._stream.record_event()
        except BaseException as error:
            self.failure = error
            raise


def _ends(future: Future[None], limit_s: float) -> bool:
    """Whether it ends within so long. A time in which this process was suspended (Ctrl-Z, a machine
    that slept) counts as one of `_SLICES` at most, for the job stood still, too.
    """
    for _ in range(_SLICES):
        with suppress(TimeoutError):
            future.exception(limit_s / _SLICES)
            return True
    return False


def _succeeded(future: Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
