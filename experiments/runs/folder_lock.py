"""A run's folder is held by the process that runs there, so that no other one does.

The lock is a file beside the folder, locked by `flock`: the kernel releases it when the process and
its children are gone, however they end. NFS since version 4 carries it to other hosts; where a file
system has no locks, nothing is held.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from host.errors import UserError
from host.output import ANOTHER_RUN_DIR

PATIENCE_S = 2.0
"""Workers may outlive their launcher, which was killed, by a moment."""


_WRITING = os.O_RDWR | os.O_CREAT
_NO_ROOM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Why no lock can lie beside a folder."""


class HeldError(UserError):
    """Another process runs there."""


@contextmanager
def hold(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold `folder`, which need not exist, until the context or this process ends.

    Raises `HeldError` where another process holds it for longer than `patience_s`.
    """
    lock = _lock_of(folder)
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _take(lock, patience_s)
    if descriptor is None:
        raise HeldError(f"{folder} is being run by another process: let it end, or stop it")
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def hold_alone(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the `folder` of the only run of this command. Where no lock can lie beside it, nobody
    can hold it. Raises `UserError` where another command runs there.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(folder, patience_s))
        except HeldError as error:
            raise UserError(f"{error}, or choose {ANOTHER_RUN_DIR}") from error
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        yield


def is_held(folder: Path) -> bool:
    """Whether a process holds `folder`."""
    lock = _lock_of(folder)
    if not lock.is_file():
        return False
    try:
        is_own = os.access(lock, os.W_OK)
        descriptor = _take(lock, PATIENCE_S, _WRITING if is_own else os.O_RDONLY)
    except FileNotFoundError:  # its holder has ended meanwhile
        return False
    if descriptor is None:
        return True
    with suppress(PermissionError):  # another user's
        lock.unlink(missing_ok=True)  # its holder was killed
    os.close(descriptor)
    return False


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _take(lock: Path, patience_s: float, flags: int = _WRITING) -> int | None:
    """A descriptor of the file that locks it; None if another process does."""
    deadline_s = time.monotonic() + patience_s
    while True:
        descriptor = os.open(lock, flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline_s:
                return None
            time.sleep(0.05)
        except OSError:  # this file system has no locks
            return descriptor
        else:
            if _is_named(descriptor, lock):
                return descriptor
            os.close(descriptor)  # its last holder has removed it meanwhile


def _is_named(descriptor: int, lock: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == lock.stat().st_ino
    except FileNotFoundError:
        return False
