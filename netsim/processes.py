"""Processes that die with their parent and live in a network namespace of their own."""

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from netsim.errors import NamespaceError

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
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


def enter_network_namespace() -> None:
    """Move this single-threaded process to a new, empty network namespace.

    Where that takes a right that the user lacks, the process becomes root of a new user
    namespace first; files still belong to the same user.

    Raises:
        NamespaceError: if this host forbids both.
    """
    assert len(os.listdir("/proc/self/task")) == 1, "unshare acts on one thread only"
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _enter_network_namespace_rootless()
    except OSError as error:
        raise NamespaceError(
            f"This host grants no network namespace ({error.strerror}), which a shaped network of "
            f"workers needs: raise the sysctl user.max_net_namespaces, or run on another host."
        ) from error


def _enter_network_namespace_rootless() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        _unshare(_CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
        _unshare(_CLONE_NEWNET)
    except OSError as error:
        raise NamespaceError(
            f"This host forbids user namespaces ({error.strerror}), which a shaped network of "
            f"workers needs: run as root, or allow them (sysctl user.max_user_namespaces above 0, "
            f"kernel.unprivileged_userns_clone=1, "
            f"kernel.apparmor_restrict_unprivileged_userns=0; in a container, CAP_SYS_ADMIN)."
        ) from error


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


def run_in_pid_namespace(main: Callable[[], int]) -> int:
    """What `main` returns in a child with which all that it has started dies, however it ends.

    The child is the first of a new PID namespace. It may call exec.

    Raises:
        NamespaceError: if the host forbids PID namespaces.
    """
    try:
        _unshare(_CLONE_NEWPID)
    except OSError as error:
        raise NamespaceError(
            f"This host grants no PID namespace ({error.strerror}), without which a command's "
            f"children would outlive it: raise the sysctl user.max_pid_namespaces."
        ) from error
    ours, theirs = socket.socketpair()

    def run() -> int:
        ours.close()
        with theirs:
            theirs.send(b"+")  # this process dies with its parent from now on
            if not theirs.recv(1):
                return 1
        return main()

    with ours:
        child_pid = fork(run)
        theirs.close()
        if ours.recv(1):
            ours.send(b"+")
    code = os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1])
    return code if code >= 0 else 128 - code


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


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
