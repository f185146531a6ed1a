"""Measurements that have this host for themselves, among the processes that work in one folder.

Who works holds a lock that others hold as well, and lets go of it between two pieces of work where
somebody is about to measure. Who measures has another one, which has the others wait, and begins
once nobody works. Both are of the kernel (`flock`): it lets go of them when a process and the
children that it has forked are gone, however they end. Where a file system has no locks, nobody
waits.
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from host.commands import say
from host.words import listed

FOLDER = ".quiet"
"""Where the locks are, in the folder that processes share; hosts that share it have their own."""

LIMIT_S = 60.0
"""How long the same processes are waited for."""

_EVERY_S = 0.02
_LOCKS = Path("/proc/locks")


class Quiet:
    """One process's part, and that of the children that it forks afterwards: they work or measure
    in its place, never beside it.

    Args:
        folder: what the processes have in common; made if need be, as far as that is allowed.
    """

    def __init__(self, folder: Path) -> None:
        host = socket.gethostname()
        self._turn = _opened(folder / FOLDER / f"{host}.turn")
        self._work = _opened(folder / FOLDER / f"{host}.work")
        self._works = False
        self._in_vain: list[int] | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within is work that takes time from what is measured on this host."""
        self._begin()
        self._works = True
        try:
            yield
        finally:
            self._works = False
            self._end()

    def give_way(self) -> None:
        """Between two pieces of work: let those measure who are about to."""
        if not self._works:
            return
        if _take(self._turn, fcntl.LOCK_SH):
            _release(self._turn)
        else:
            self._end()
            self._begin()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within nobody else works here, unless somebody goes on with one piece of work for longer
        than `LIMIT_S`, which is said.
        """
        worked, self._works = self._works, False
        if worked:
            self._end()
        self._await(self._turn, fcntl.LOCK_EX)
        self._await(self._work, fcntl.LOCK_EX)
        try:
            yield
        finally:
            _release(self._work)
            _release(self._turn)
            if worked:
                self._begin()
                self._works = True

    def close(self) -> None:
        """Let go of both, for good."""
        for descriptor in (self._turn, self._work):
            if descriptor is not None:
                os.close(descriptor)
        self._turn = self._work = None

    def _begin(self) -> None:
        self._await(self._turn, fcntl.LOCK_SH)
        self._await(self._work, fcntl.LOCK_SH)
        _release(self._turn)

    def _end(self) -> None:
        _release(self._work)

    def _await(self, descriptor: int | None, kind: int) -> None:
        """Take the lock, or say for whom it was waited in vain; for them it is not waited again.
        Time in which this process is suspended does not count.
        """
        earlier: list[int] = []
        waited_s = 0.0
        while not _take(descriptor, kind):
            assert descriptor is not None, "without a lock nobody is waited for"
            holders = _holders(descriptor)
            if holders == self._in_vain:
                return
            if holders != earlier:
                earlier, waited_s = holders, 0.0
            if waited_s > LIMIT_S:
                self._in_vain = holders
                what = "measures" if kind == fcntl.LOCK_EX else "works"
                others = listed(f"process {pid}" for pid in holders) or "another process"
                say(f"{others} did not pause within {LIMIT_S:g} s: this one {what} beside it")
                return
            time.sleep(_EVERY_S)
            waited_s += _EVERY_S


@contextmanager
def working_in(folder: Path | None) -> Iterator[Quiet | None]:
    """Within is work that takes time from what is measured by others who work in `folder`, and the
    part that this process has; None: it is nobody's business.
    """
    if folder is None:
        yield None
        return
    with closing(Quiet(folder)) as quiet, quiet.working():
        yield quiet


def _opened(path: Path) -> int | None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT)
    return None


def _take(descriptor: int | None, kind: int) -> bool:
    """Whether it could be taken at once, or there is none."""
    if descriptor is None:
        return True
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


def _release(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _holders(descriptor: int) -> list[int]:
    """The processes that have locked a file, as far as the kernel names them."""
    number = os.fstat(descriptor).st_ino
    with suppress(OSError):
        text = _LOCKS.read_text()
        own = re.findall(rf"^\d+: FLOCK\s+\w+\s+\w+\s+(\d+) \S+:{number} ", text, re.MULTILINE)
        return sorted(map(int, own))
    return []
