"""A run's folder is held by the process that runs there, so that no other one does.

The lock is a file beside the folder, locked by `flock`: the kernel releases it when the process and
its children are gone, however they end. NFS since version 4 carries it to other hosts; where a file
system has no locks, nothing is held.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.errors import UserError

PATIENCE_S = 2.0
"""Workers may outlive their launcher, which was killed, by a moment."""


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


def is_held(folder: Path) -> bool:
    """Whether a process holds `folder`."""
    lock = _lock_of(folder)
    if not lock.exists():
        return False
    descriptor = _take(lock, PATIENCE_S)
    if descriptor is None:
        return True
    lock.unlink(missing_ok=True)  # its holder was killed
    os.close(descriptor)
    return False


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _take(lock: Path, patience_s: float) -> int | None:
    """A descriptor of the file that locks it; None if another process does."""
    deadline_s = time.monotonic() + patience_s
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
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
