"""Stores: where entries are kept, and what becomes of a store that cannot be reached.

An entry is bytes, under the name of a data set (16 bytes) and a key. A store may forget any entry
at any time.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


class StoreError(Exception):
    """The store cannot be reached, or does not do what it is asked; the message says why."""


class StoreFullError(StoreError):
    """There is no room for new entries; the message says how to make some."""


class Store(Protocol):
    """Where entries are kept. Every method may be called by several processes at once, and after
    a fork; all raise `StoreError`.
    """

    def read(self, dataset: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of `keys`, None where there is none."""
        ...

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep `entries`, in place of others under the same keys."""
        ...

    def close(self) -> None:
        """End what is open in this process; the next call opens it again."""
        ...


class Guarded:
    """A store that never fails: what cannot be read is None, what cannot be written is dropped.

    The first failure is a warning. After each one the store is left alone for a while, longer from
    time to time, so that an unreachable server costs few timeouts; one that comes back is used
    again.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._warned: set[type[StoreError]] = set()
        self._pause_s = FIRST_PAUSE_S
        self._reads_from_s = self._writes_from_s = -float("inf")

    def read(self, dataset: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of `keys`, None where there is none or none can be had."""
        if self._clock() >= self._reads_from_s:
            try:
                found = self.store.read(dataset, keys)
                self._pause_s = FIRST_PAUSE_S
                return found
            except StoreError as error:
                self._pause(error)
        return [None] * len(keys)

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep `entries` if that can be."""
        if self._clock() >= self._writes_from_s:
            try:
                self.store.write(dataset, entries)
            except StoreError as error:
                self._pause(error)

    def close(self) -> None:
        """End what is open in this process."""
        self.store.close()

    def _pause(self, error: StoreError) -> None:
        self._writes_from_s = self._clock() + self._pause_s
        if not isinstance(error, StoreFullError):  # what is in a full one can be read
            self._reads_from_s = self._writes_from_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if type(error) not in self._warned:
            self._warned.add(type(error))
            warnings.warn(f"{error}: examples are computed anew", RuntimeWarning, stacklevel=2)
