"""A thread that runs jobs first in, first out, and that never keeps the process from ending.

A script may end at any moment, with a job in the middle of a collective that no other worker will
join. Python would wait for an ordinary thread until the collective's time limit, half an hour by
default. A daemon that comes back from a collective while Python shuts down is ended by Python amid
C++ code, which aborts the process. So the end of a process waits for a short while, and then holds
what is still under way where it is.
"""

import atexit
import contextlib
import ctypes
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from bagua_algos.communication.threads.at_exit import let_threads_rest

LEAVE_S = 5.0
"""How long the end of a process waits for the jobs that have begun, seconds."""

Job = Callable[[], None]
_Jobs = SimpleQueue[tuple[Future[None], Job] | None]


class JobThread:
    """Runs submitted jobs in order."""

    def __init__(self) -> None:
        self._jobs: _Jobs = SimpleQueue()
        self._thread = threading.Thread(
            target=_run, args=(self._jobs,), name="communication", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)
        _LIVING.add(self)

    def submit(self, job: Job) -> Future[None]:
        """Run `job` after all earlier ones."""
        future: Future[None] = Future()
        self._jobs.put((future, job))
        return future

    def at_end(self, before: Callable[[], None], after: Callable[[float], None]) -> None:
        """When the process ends before `close`, call `before`, while jobs may be under way, and
        `after` once none is, or after `LEAVE_S`: with the `time.monotonic()` until which the end
        may wait. Until then this thread stays, even where nobody has it any longer.
        """
        _LAST_WORDS[self] = before, after

    def close(self) -> None:
        """Drop what has not begun, and end the thread once its current job is done."""
        _LAST_WORDS.pop(self, None)
        with contextlib.suppress(Empty):
            while True:
                dropped = self._jobs.get_nowait()
                if dropped is not None:
                    dropped[0].cancel()
        self._jobs.put(None)

    def leave(self, until_s: float) -> None:
        """The process ends: wait for the current job until `time.monotonic()` is `until_s`."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive() and self._thread.ident is not None:
            _hold(self._thread.ident)


_LIVING: weakref.WeakSet[JobThread] = weakref.WeakSet()
_LAST_WORDS: dict[JobThread, tuple[Callable[[], None], Callable[[float], None]]] = {}
"""What is to be called at the end: before jobs are waited for, and after that."""


def _run(jobs: _Jobs) -> None:
    while (item := jobs.get()) is not None:
        future, job = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        del item, future, job  # or they would be kept until the next


@atexit.register
def _leave_all() -> None:
    living = [one for one in _LIVING if one._thread.is_alive()]
    words = [_LAST_WORDS[one] for one in living if one in _LAST_WORDS]
    for speak, _ in words:
        speak()
    for one in living:
        one.close()
    until_s = time.monotonic() + LEAVE_S
    for one in living:
        one.leave(until_s)
    for _, conclude in words:
        conclude(until_s)
    let_threads_rest()


def _hold(thread: int) -> None:
    """Have the thread sleep in a signal handler of C, from which it never comes back to Python."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGRTMAX, ctypes.cast(libc.pause, ctypes.c_void_p))
    signal.pthread_kill(thread, signal.SIGRTMAX)
