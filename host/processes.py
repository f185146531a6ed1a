"""Processes that die with their parent."""

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from netsim.errors import NamespaceError

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
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # 0: the parent is outside of this process's PID namespace.
    if os.getppid() not in (parent_pid, 0):
        os.kill(os.getpid(), signal.SIGKILL)


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


def kill(pid: int) -> None:
    """Kill a child with SIGKILL and reap it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def run_in_child(function: Callable[[], str], *, limit_s: float = 20) -> str:
    """What `function` returns when called in a forked child, which is gone afterwards.

    Raises:
        NamespaceError: that of the function; or if the child died or took longer than `limit_s`.
    """
    reader, writer = os.pipe()

    def answer() -> int:
        try:
            text, code = function(), 0
        except NamespaceError as error:
            text, code = str(error), 1
        os.write(writer, bytes([code]) + text.encode())
        return 0

    child_pid = fork(answer)
    os.close(writer)
    try:
        in_time = bool(select.select([reader], [], [], limit_s)[0])
        answered = os.read(reader, 4096) if in_time else b""
    finally:
        os.close(reader)
        kill(child_pid)
    if not answered:
        how = "died" if in_time else f"did not end within {limit_s:g} s"
        raise NamespaceError(f"A trial process that makes a network namespace {how}.")
    if answered[0]:
        raise NamespaceError(answered[1:].decode())
    return answered[1:].decode()


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
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
