"""Processes that die with their parent."""

import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from typing import NoReturn, TypeVar

from host.errors import ChildError, UserError
from host.forks.channel import ParentChannel
from host.memory import ADVICE, is_lack_of_memory

Answer = TypeVar("Answer")

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process (SIGKILL) as soon as its parent is gone.

    Call it first in a forked child. The kernel ties it to the parent's *thread* that forked, and
    a child of this process has to ask for itself.

    Args:
        parent_pid: the parent, asked for before the fork: it may be gone by now.
    """
    _set_death_signal(signal.SIGKILL)
    # 0: the parent is outside of this process's PID namespace.
    if os.getppid() not in (parent_pid, 0):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying_with_parent() -> Iterator[None]:
    """Within, the same for a process that was started, not forked; its parent may be any."""
    _set_death_signal(signal.SIGKILL)
    try:
        yield
    finally:
        _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    """What the kernel sends once the parent's thread is gone; 0: nothing."""
    if _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def fork(main: Callable[[], int]) -> int:
    """Fork a child that dies with this process and exits with what `main` returns.

    An exception prints its traceback and exits with 1. Nothing of the parent's is run on exit,
    neither `atexit` nor `finally`, and no handler of SIGINT or SIGTERM: both kill the child at
    once, unless the parent ignores them. Returns the child's pid.
    """
    parent_pid = os.getpid()
    _flush()  # else parent and child would both print what is buffered
    # A handler that raises in the child, before it has its own, would have it go on as its parent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        child_pid = os.fork()
        if child_pid == 0:
            _run_and_exit(parent_pid, main, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child_pid


def schedule_as_batch() -> None:
    """Have the kernel run this process, its later threads and its children as batch work, unless
    it already treats them otherwise than by default.

    Then a thread that is woken does not interrupt another one. By default, where workers share
    cores, one that is interrupted stood still until the next tick of the kernel's clock (4 ms):
    an all-reduce of 40 kB by eight gloo workers on two cores, links of 1 Gbit/s, took 23 ms, and 4
    as batch work (Linux 6.18, medians of 60).
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def allow_open_files(number: int) -> None:
    """Let this process and its children open so many files. Raises `UserError` where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise UserError(
            f"this shell allows {hard} open files: allow {number} by ulimit -n {number}"
        )
    if soft != resource.RLIM_INFINITY and soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def kill(pid: int) -> None:
    """Kill a child with SIGKILL and reap it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


WELL = "ended with exit code 0"
"""How a child ends that has done its work."""


def end_of(pid: int) -> str:
    """Reap a child that has ended or is about to; returns how it did, such as "was killed by
    SIGTERM" or "ended with exit code 1".
    """
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def run_in_child(function: Callable[[], Answer], *, doing: str, limit_s: float = 20) -> Answer:
    """What `function` returns when called in a forked child, which is gone afterwards.

    Args:
        function: its answer, or the exception that it raises, is pickled.
        doing: such as "asking CUDA", for the message of an error.
        limit_s: after so long the child is killed.

    Raises:
        ChildError: the child died or took longer than `limit_s`.
        Exception: whatever `function` raised.
    """
    ours, theirs = Pipe(duplex=False)

    def answer() -> int:
        try:
            outcome = (True, function())
        except Exception as error:
            outcome = (False, error)
        ParentChannel(theirs).send(outcome)
        return 0

    child_pid = fork(answer)
    theirs.close()
    try:
        if not ours.poll(limit_s):
            raise ChildError(f"The process that was {doing} did not end within {limit_s:g} s.")
        has_returned, value = ours.recv()
    except EOFError:
        raise ChildError(f"The process that was {doing} died; what it printed says why.") from None
    finally:
        ours.close()
        kill(child_pid)
    if not has_returned:
        raise value
    return value


def _run_and_exit(
    parent_pid: int, main: Callable[[], int], mask: set[signal.Signals | int]
) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent_pid)
        for number in _STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = main()
    except BaseException as error:
        if isinstance(error, Exception) and is_lack_of_memory(error):
            print(f"a process of this command has ended: {ADVICE}", file=sys.stderr)
        else:
            traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
