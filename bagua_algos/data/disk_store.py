"""The store on this host's disk, by LMDB: one file that all processes map into their memory.

Entries of one data set stand together. When the capacity is reached, data sets make room that
nobody has used since this process opened the file, the one unused for the longest first. A data set
that does not fit by itself keeps what it has: each of its examples is needed once an epoch, so that
one is worth as much as another.

LMDB does not wait for the disk (`sync=False`): a process that dies loses nothing, but a host that
goes down may leave the file in pieces. So a writer leaves a note with the number of this boot of
the host. A process that is alone with the file, as the last process of a run is at its end, syncs
it and takes the note away. A file with a note of another boot is thrown away.

    databases: "entries"   name of the data set (16 bytes) + key -> entry
               "data sets" name of the data set -> when it was last used (s), its size in bytes
"""

import atexit
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import platformdirs

from bagua_algos.data.store import StoreError, StoreFullError

DEFAULT_CAPACITY_BYTES = 10 << 30
TOUCH_EVERY_S = 60.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_PAGE = 4096
_INLINE = 1900
"""Bytes of an entry that share a page with others; larger ones have pages of their own."""
_MAX_READERS = 1024
_OF_DATASET = struct.Struct("<dQ")


@dataclass(frozen=True, kw_only=True)
class DiskStore:
    """Entries in a folder of this host, not on a network file system.

    Args:
        folder: None: "relaxlab/examples" in the user's cache folder.
        capacity_bytes: what entries may take together, counted in pages of 4 KiB where they are
            larger than half of one.

    Raises:
        ValueError: a capacity below one page, or not a whole number.
        ImportError: LMDB is not installed.
    """

    folder: Path | None = None
    capacity_bytes: int = DEFAULT_CAPACITY_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.capacity_bytes, Integral) or self.capacity_bytes < _PAGE:
            raise ValueError(
                f"capacity_bytes must be a whole number of at least {_PAGE}, one page, "
                f"got {self.capacity_bytes}"
            )
        _lmdb()
        _MADE.add(self)

    def read(self, dataset: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of `keys`, None where there is none. Raises `StoreError`."""
        with self._errors():
            opened = self._opened()
            opened.touch(dataset)
            with opened.environment.begin(db=opened.entries) as transaction:
                return [transaction.get(dataset + key) for key in keys]

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep `entries`, all or none. Raises `StoreError`, `StoreFullError` where there is no
        room for all.
        """
        with self._errors():
            opened = self._opened()
            opened.begin_writing()
            opened.write(dataset, entries, self.capacity_bytes)

    def close(self) -> None:
        """Sync what this process has written, and close the file. Raises `StoreError`."""
        with self._errors():
            with _LOCK:
                opened = _OPENED.pop(self._path, None)
            if opened is not None and opened.pid == os.getpid():
                opened.close()
            elif opened is not None:
                opened.leave()

    def _opened(self) -> "_Opened":
        with _LOCK:
            opened = _OPENED.get(self._path)
            if opened is None or opened.pid != os.getpid():
                if opened is not None:
                    opened.leave()
                opened = _OPENED[self._path] = _Opened(self._path, self.capacity_bytes)
                _MADE.add(self)  # it may have come by pickle
        return opened

    @cached_property
    def _path(self) -> Path:
        folder = self.folder or Path(platformdirs.user_cache_dir("relaxlab")) / "examples"
        return Path(folder).absolute()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        lmdb = _lmdb()
        try:
            yield
        except (lmdb.MapFullError, _NoRoomError) as error:
            raise StoreFullError(
                f"the cache in {self._path} is full: give a greater capacity_bytes than "
                f"{self.capacity_bytes}"
            ) from error
        except (lmdb.Error, OSError) as error:
            raise StoreError(
                f"the cache in {self._path} cannot be used ({error}; delete it, or give "
                "another folder)"
            ) from error


class _NoRoomError(Exception):
    pass


class _Opened:
    """The file as one process has it open; LMDB allows it once."""

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pid = os.getpid()
        self._since_s = time.time()
        self._touched_s: dict[bytes, float] = {}
        self._note = folder / "unsynced"
        self._is_writing = False
        self._lock = os.open(folder / "writers.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._open(folder, capacity_bytes)
        except BaseException:
            self._unlock()
            os.close(self._lock)
            raise

    def _open(self, folder: Path, capacity_bytes: int) -> None:
        is_alone = self._has_no_writer()
        if not is_alone:
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # waits for one who is alone
        elif self._note.exists() and self._note.read_text() != _boot():
            for name in ("entries.lmdb", "entries.lmdb-lock"):
                (folder / name).unlink(missing_ok=True)
        self._map(folder, capacity_bytes)
        if is_alone:
            self._sync()
        self._unlock()

    def _map(self, folder: Path, capacity_bytes: int) -> None:
        self.environment = _lmdb().open(
            str(folder / "entries.lmdb"),
            map_size=2 * capacity_bytes + (64 << 20),
            subdir=False,
            max_dbs=2,
            max_readers=_MAX_READERS,
            sync=False,
            readahead=False,
            mode=0o600,
        )
        self.environment.reader_check()  # of processes that were killed
        self.entries = self.environment.open_db(b"entries")
        self.datasets = self.environment.open_db(b"data sets")

    def begin_writing(self) -> None:
        """From now on the file may not be on the disk."""
        if not self._is_writing:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            with self._note.open("w") as note:
                note.write(_boot())
                note.flush()
                os.fsync(note.fileno())
            self._is_writing = True

    def touch(self, dataset: bytes) -> None:
        """Note that the data set is in use, once a minute."""
        now_s = time.time()
        if now_s - self._touched_s.get(dataset, 0.0) < TOUCH_EVERY_S:
            return
        self._touched_s[dataset] = now_s
        with self.environment.begin(db=self.datasets) as transaction:
            row = transaction.get(dataset)
        if row is not None:
            self.begin_writing()
            with self.environment.begin(write=True, db=self.datasets) as transaction:
                _, size = _OF_DATASET.unpack(transaction.get(dataset, row))
                transaction.put(dataset, _OF_DATASET.pack(now_s, size))

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes], capacity_bytes: int) -> None:
        """Put all of them, and take away what has to make room, in one transaction."""
        with self.environment.begin(write=True, buffers=True) as transaction:
            sizes = self._sizes(transaction)
            own = sizes.setdefault(dataset, [0.0, 0])
            own[0] = time.time()
            for key, entry in entries.items():
                before = transaction.get(dataset + key, db=self.entries)
                own[1] += _size(entry) - (0 if before is None else _size(before))
            too_many = sum(size for _, size in sizes.values()) - capacity_bytes
            self._make_room(transaction, dataset, sizes, too_many)
            for key, entry in entries.items():
                transaction.put(dataset + key, entry, db=self.entries)
            for name, (used_s, size) in sizes.items():
                if size or name == dataset:
                    transaction.put(name, _OF_DATASET.pack(used_s, size), db=self.datasets)
                else:
                    transaction.delete(name, db=self.datasets)

    def close(self) -> None:
        """Sync if nobody else is writing."""
        self._unlock()
        if self._has_no_writer():
            self._sync()
            self._unlock()
        self.leave()

    def leave(self) -> None:
        """Close what is open here; in a forked child, without a word to the parent's file."""
        self.environment.close()
        os.close(self._lock)

    def _unlock(self) -> None:
        """Said, not left to the end of the file: a forked child has it open, too."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _sync(self) -> None:
        if self._note.exists():
            self.environment.sync(True)
            self._note.unlink()

    def _sizes(self, transaction: Any) -> dict[bytes, list[Any]]:
        with transaction.cursor(self.datasets) as cursor:
            return {bytes(name): list(_OF_DATASET.unpack(row)) for name, row in cursor}

    def _make_room(
        self, transaction: Any, own: bytes, sizes: dict[bytes, list[Any]], too_many: int
    ) -> None:
        before_s = min(self._since_s, time.time() - 2 * TOUCH_EVERY_S)
        unused = [name for name in sizes if name != own and sizes[name][0] < before_s]
        for name in sorted(unused, key=lambda name: sizes[name][0]):
            if too_many <= 0:
                return
            freed = self._evict(transaction, name, too_many)
            sizes[name][1] -= freed
            too_many -= freed
        if too_many > 0:
            raise _NoRoomError  # aborts the transaction

    def _evict(self, transaction: Any, dataset: bytes, num_bytes: int) -> int:
        freed = 0
        with transaction.cursor(self.entries) as cursor:
            is_there = cursor.set_range(dataset)
            while is_there and freed < num_bytes and bytes(cursor.key()).startswith(dataset):
                freed += _size(cursor.value())
                is_there = cursor.delete()
        return freed

    def _has_no_writer(self) -> bool:
        """Whether this process has the lock for itself alone."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@atexit.register
def _sync_at_exit() -> None:
    """Take away the notes of this run, those of a `DataLoader`'s processes included."""
    for store in _MADE:
        with suppress(Exception):
            store._opened()
            store.close()


_MADE: set[DiskStore] = set()
_OPENED: dict[Path, _Opened] = {}
_LOCK = threading.Lock()
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # pyright: ignore[reportAttributeAccessIssue]


def _size(entry: bytes | memoryview) -> int:
    """What an entry takes of the capacity, bytes."""
    return len(entry) if len(entry) <= _INLINE else -(-(len(entry) + 16) // _PAGE) * _PAGE


def _boot() -> str:
    """What is another text after the host has gone down; where it has no such text, always ''."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise ImportError(
            "a cache on disk needs LMDB: pip install 'relaxlab[data]', or give a redis:// address"
        ) from error
    return lmdb
