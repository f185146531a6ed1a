"""The end of a process that has talked over gloo: the others hear of it, and it ends cleanly.

gloo's threads let go of an operation's tensors after its caller has been told of the end. A thread
that asks for Python's lock for this while Python shuts down is ended by Python amid C++ code, which
aborts the process: one run of four that ended with an `all_gather`.
"""

import contextlib
import math
import os
import threading
import time
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

LIMIT_S = 1.0
_PAUSE_S = 0.01

has_process_groups = threading.Event()
"""Set where one is made."""

WORD_S = 1.0
"""A worker that has closed its connections before has left word within this time, or never will."""


class Departures:
    """Which workers have ended, and after how many steps: each leaves word in the store that all of
    them have met in.

    Args:
        store: of all workers.
        name: of what they share here; no other has it in this store.
        rank: of this worker.
        world_size: N.
        holder: the worker whose process serves the store, which ends with it; None for a store that
            outlives all of them, such as a file or a launcher's.
    """

    def __init__(
        self, store: Store, name: str, rank: int, world_size: int, holder: int | None = None
    ) -> None:
        self._store = store
        self._keys = {other: f"{name}: worker {other} has ended" for other in range(world_size)}
        self._own = self._keys.pop(rank)
        self._is_holder = rank == holder
        self._gone: dict[int, int | None] = {} if holder in (None, rank) else {holder: None}
        self._left: dict[int, int | None] = {}
        self._asked_s = self._heard_s = -math.inf

    def leave(self, num_steps: int) -> None:
        """Leave word, after so many steps; nothing where the store is gone."""
        with contextlib.suppress(RuntimeError):
            self._store.set(self._own, str(num_steps))

    def wait_for_the_others(self, until_s: float) -> None:
        """The worker that holds the store waits until all others have left word, at most until
        `time.monotonic()` is `until_s`: meanwhile those that go on can hear of its end.
        """
        while self._is_holder and len(self.known()) < len(self._keys):
            if time.monotonic() > until_s:
                return
            time.sleep(_PAUSE_S)

    def known(self, *, within_s: float = 0.0) -> dict[int, int | None]:
        """The workers that have ended, each with its number of steps: None for one that took the
        store along before this worker had asked. Waits `within_s` seconds for the first word, not
        where the store is gone.
        """
        until_s = time.monotonic() + within_s
        try:
            while not self._ask() and time.monotonic() < until_s:
                time.sleep(_PAUSE_S)
        except RuntimeError:
            self._left = self._gone | self._left
        if self._left and self._heard_s == -math.inf:
            self._heard_s = time.monotonic()
        return self._left

    def lately_known(self) -> dict[int, int | None]:
        """As `known`, but the store is asked every `WORD_S` seconds at most."""
        if time.monotonic() - self._asked_s < WORD_S:
            return self._left
        self._asked_s = time.monotonic()
        return self.known()

    @property
    def known_for_s(self) -> float:
        """How long ago this worker heard that one has ended, seconds; below 0 if it has not."""
        return time.monotonic() - self._heard_s if self._left else -1.0

    def _ask(self) -> dict[int, int | None]:
        new = [rank for rank in self._keys if rank not in self._left]
        there = [rank for rank in new if self._store.check([self._keys[rank]])]
        self._left |= {rank: int(self._store.get(self._keys[rank])) for rank in there}
        return self._left


def ends_with_worker_0(store: Store) -> bool:
    """Whether worker 0's process serves `store`: torch has it so by `env://` and `tcp://`, unless
    torchrun serves it.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(store, TCPStore) and not is_torchruns


def let_threads_rest() -> None:
    """Wait until no other thread of this process computes, `LIMIT_S` seconds at most."""
    if not has_process_groups.is_set():
        return
    until_s, num_quiet = time.monotonic() + LIMIT_S, 0
    while num_quiet < 2 and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)  # in which others may have the lock
        num_quiet = 0 if _others_run() else num_quiet + 1


def _others_run() -> bool:
    own = str(threading.get_native_id())
    return any(_state(thread) == "R" for thread in os.listdir("/proc/self/task") if thread != own)


def _state(thread: str) -> str:
    """R: it runs, or waits for a processor; S: it waits for something else."""
    try:
        stat = Path("/proc/self/task", thread, "stat").read_text()
    except OSError:  # it has ended
        return "X"
    return stat.rpartition(")")[2].split()[0]
