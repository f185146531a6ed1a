"""Linux namespaces of this process: a network of its own, processes that die with it.

Source: unshare(2), setns(2), user_namespaces(7), pid_namespaces(7).
"""

import ctypes
import os
import socket
from collections.abc import Callable

from host.processes import fork
from netsim.errors import NamespaceError

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


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


def join_network_namespace(pid: int) -> None:
    """Move this single-threaded process to the network namespace of the process `pid`, a descendant
    of a process of this user's that has called `enter_network_namespace`.

    Raises:
        NamespaceError: if that process is gone.
    """
    assert len(os.listdir("/proc/self/task")) == 1, "setns acts on one thread only"
    try:
        own = os.stat("/proc/self/ns/user")
        if not os.path.samestat(own, os.stat(f"/proc/{pid}/ns/user")):
            _join(pid, "user", _CLONE_NEWUSER)
        _join(pid, "net", _CLONE_NEWNET)
    except OSError as error:
        raise NamespaceError(
            f"The network namespace of process {pid} cannot be entered ({error.strerror}): did it "
            "die?"
        ) from error


def _join(pid: int, kind: str, flag: int) -> None:
    with open(f"/proc/{pid}/ns/{kind}", "rb") as namespace:
        if _libc.setns(namespace.fileno(), flag):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


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


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
