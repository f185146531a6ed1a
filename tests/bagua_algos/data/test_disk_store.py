"""The store on disk: shared by processes, bounded, and whole whatever dies."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bagua_algos.data import disk_store
from bagua_algos.data.disk_store import DiskStore
from bagua_algos.data.store import StoreError, StoreFullError
from bagua_algos.data.values import MISSING, decode, encode
from host.processes import fork, kill
from tests import app
from tests.paths import ROOT

OLD, OWN, THIRD = (letter * 16 for letter in (b"a", b"b", b"c"))
PAGE = 4096


@pytest.fixture
def make(tmp_path):
    """Makes stores of one folder; one of them has it open."""
    stores = []

    def make_store(**options):
        for store in stores:
            store.close()
        stores.append(DiskStore(folder=tmp_path / "cache", **options))
        return stores[-1]

    yield make_store
    for store in stores:
        store.close()


def numbered(numbers, size=1000):
    return {b"%d" % i: b"%4d" % i * (size // 4) for i in numbers}


def present(store, dataset, numbers, size=1000):
    """Which of the entries it has; each is what was written."""
    expected = numbered(numbers, size)
    found = store.read(dataset, list(expected))
    assert all(entry in (None, expected[key]) for key, entry in zip(expected, found, strict=True))
    return [i for i, entry in zip(numbers, found, strict=True) if entry is not None]


def in_child(work) -> int:
    """The exit code of a forked process that does `work`."""
    _, status = os.waitpid(fork(work), 0)
    return os.waitstatus_to_exitcode(status)


def test_entries_are_there_for_the_same_data_set_and_key_alone(make):
    store = make()
    store.write(OWN, {b"1": b"x", b"2": b""})
    assert store.read(OWN, [b"2", b"3", b"1"]) == [b"", None, b"x"]
    assert store.read(OLD, [b"1"]) == [None]
    store.write(OWN, {b"1": b"y"})
    assert store.read(OWN, [b"1"]) == [b"y"]
    assert make().read(OWN, [b"1"]) == [b"y"], "after it was closed"


def test_forked_processes_share_it_with_their_parent(make):
    store = make()
    store.write(OWN, {b"parent": b"1"})

    def child(name: bytes) -> int:
        if store.read(OWN, [b"parent"]) != [b"1"]:
            return 1
        store.write(OWN, numbered(range(50), 5000) | {name: name})
        return 0 if len(present(store, OWN, range(50), 5000)) == 50 else 2

    pids = [fork(lambda i=i: child(b"child %d" % i)) for i in range(4)]
    store.write(OWN, {b"beside": b"2"})
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    names = [b"child %d" % i for i in range(4)]
    assert store.read(OWN, [*names, b"beside"]) == [*names, b"2"]


@pytest.mark.parametrize(
    ("size", "num_kept", "most_pages"),
    [
        (1900, 43, 60),
        (1904, 20, 40),
        (3000, 20, 40),
        (4080, 20, 40),
        (4084, 10, 40),
        (8172, 10, 40),
    ],
)
def test_one_data_set_never_takes_more_than_the_capacity(
    make, tmp_path, size, num_kept, most_pages
):
    """Small entries share pages; large ones have some of their own, with 16 bytes for LMDB."""
    store = make(capacity_bytes=20 * PAGE)
    with pytest.raises(StoreFullError, match="is full: give a greater capacity_bytes than 81920"):
        for number in range(100):
            store.write(OWN, numbered([number], size))
    assert present(store, OWN, range(100), size) == list(range(num_kept)), "it keeps what it has"
    store.write(OWN, numbered([3], size))  # in place of itself
    assert (tmp_path / "cache" / "entries.lmdb").stat().st_blocks * 512 < most_pages * PAGE


def num_kept(store, dataset) -> int:
    """How many entries it has, without using them."""
    opened = store._opened()
    with opened.environment.begin(db=opened.entries) as transaction:
        return sum(key.startswith(dataset) for key in transaction.cursor().iternext(values=False))


def age(monkeypatch, seconds: float) -> None:
    """Let time pass."""
    later_s = time.time() + seconds
    monkeypatch.setattr(disk_store.time, "time", lambda: later_s)


def test_data_sets_that_nobody_uses_make_room_the_oldest_first(make, monkeypatch):
    options = {"capacity_bytes": 30 * PAGE}
    store = make(**options)
    store.write(OLD, numbered(range(10), 3000))
    age(monkeypatch, 200)
    make(**options).write(THIRD, numbered(range(10), 3000))
    age(monkeypatch, 200)
    store = make(**options)
    store.write(OWN, numbered(range(15), 3000))
    assert [num_kept(store, name) for name in (OLD, THIRD, OWN)] == [5, 10, 15]
    store.write(OWN, numbered(range(15, 30), 3000))
    assert [num_kept(store, name) for name in (OLD, THIRD, OWN)] == [0, 0, 30]
    assert present(store, OWN, range(30), 3000) == list(range(30))
    store.write(OWN, numbered(range(30), 3000))  # what has made room is counted no more


@pytest.mark.parametrize(("before_s", "after_s"), [(60, 0), (0, 1000)])
def test_a_data_set_that_was_just_used_or_since_the_file_was_opened_makes_no_room(
    make, monkeypatch, before_s, after_s
):
    options = {"capacity_bytes": 20 * PAGE}
    store = make(**options)
    store.write(OLD, numbered(range(15), 3000))
    if before_s:
        age(monkeypatch, before_s)
        store = make(**options)
    age(monkeypatch, after_s)
    with pytest.raises(StoreFullError):
        store.write(OWN, numbered(range(10), 3000))
    assert num_kept(store, OLD) == 15


def test_a_data_set_that_is_read_makes_no_room(make, monkeypatch):
    options = {"capacity_bytes": 20 * PAGE}
    make(**options).write(OLD, numbered(range(15), 3000))
    age(monkeypatch, 200)
    store = make(**options)
    assert len(present(store, OLD, range(15), 3000)) == 15
    store.write(OWN, numbered(range(5), 3000))
    with pytest.raises(StoreFullError):
        store.write(OWN, numbered(range(5, 10), 3000))
    assert len(present(store, OLD, range(15), 3000)) == 15
    assert present(store, OWN, range(10), 3000) == list(range(5))


@pytest.mark.parametrize("number", [0, 3, 20])
def test_a_writer_that_is_killed_leaves_whole_entries(make, number):
    store = make()
    values = {b"%d" % i: [i, bytes([i % 256]) * 200_000] for i in range(300)}

    def write() -> int:
        for key, value in list(values.items()) * 100:
            store.write(OWN, {key: encode(OWN + key, value)})
        return 0

    pid = fork(write)
    app.wait_for(lambda: store.read(OWN, [b"%d" % number]) != [None], 60, "entry")
    kill(pid)
    found = dict(zip(values, store.read(OWN, list(values)), strict=True))
    whole = {key: decode(OWN + key, entry) for key, entry in found.items() if entry is not None}
    assert len(whole) > number and MISSING not in whole.values()
    assert whole == {key: values[key] for key in whole}
    store.write(OWN, {b"after": b"it"})  # the lock of the dead is free
    assert store.read(OWN, [b"after"]) == [b"it"]


def test_what_a_killed_writer_has_written_outlives_it_but_not_the_host(make, tmp_path, monkeypatch):
    store = make()

    def write() -> int:
        store.write(OWN, {b"1": b"x"})
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert in_child(write) == -signal.SIGKILL
    note = tmp_path / "cache" / "unsynced"
    assert note.read_text() == disk_store.BOOT_ID.read_text().strip()
    assert make().read(OWN, [b"1"]) == [b"x"]
    make()
    assert not note.exists(), "who was alone has synced"
    assert in_child(write) == -signal.SIGKILL
    (tmp_path / "next boot").write_text("another")
    with monkeypatch.context() as patched:
        patched.setattr(disk_store, "BOOT_ID", tmp_path / "next boot")
        assert make().read(OWN, [b"1"]) == [None], "what was not synced nobody can trust"
        make()


def test_a_run_that_has_ended_has_synced(make, tmp_path):
    """Also what a process of its DataLoader has written."""
    program = (
        "import os, pathlib, sys\n"
        "from bagua_algos.data.disk_store import DiskStore\n"
        "from host.processes import fork\n"
        "store = DiskStore(folder=pathlib.Path(sys.argv[1]))\n"
        "os.waitpid(fork(lambda: store.write(b'b' * 16, {b'1': b'x'}) or 0), 0)\n"
        "assert (store.folder / 'unsynced').exists()"
    )
    folder = tmp_path / "cache"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=ROOT)
    assert not (folder / "unsynced").exists()
    assert make().read(OWN, [b"1"]) == [b"x"]


def test_who_has_read_alone_has_written_when_that_was(make, tmp_path, monkeypatch):
    make().write(OLD, {b"1": b"x"})
    store = make()
    assert not (tmp_path / "cache" / "unsynced").exists()
    age(monkeypatch, 200)
    assert store.read(OLD, [b"1"]) == [b"x"]
    assert (tmp_path / "cache" / "unsynced").exists()


def test_that_it_writes_is_on_the_disk_before_anything_is_written(make, tmp_path, monkeypatch):
    """Else a power cut could leave half an entry, and no note of it."""
    sync, note, synced = os.fsync, tmp_path / "cache" / "unsynced", []

    def noted(file: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{file}")), num_kept(store, OWN)))
        sync(file)

    store = make()
    store.read(OWN, [b"1"])
    monkeypatch.setattr(os, "fsync", noted)
    store.write(OWN, {b"1": b"x"})
    assert synced[0] == (note, 0)


def test_while_another_process_writes_nobody_syncs_or_throws_the_file_away(make, tmp_path):
    store, note = make(), tmp_path / "cache" / "unsynced"
    store.write(OWN, {b"1": b"x"})
    with (tmp_path / "cache" / "writers.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as the other process has it
        store.close()
        assert note.exists()
        note.write_text("another boot")
        assert store.read(OLD, [b"1"]) == [None]
        store.close()
        assert note.read_text() == "another boot"
        assert store.read(OWN, [b"1"]) == [b"x"]
    store.close()
    assert not note.exists()


def test_what_is_closed_holds_no_file_open(make, tmp_path):
    store = make()
    store.write(OWN, {b"1": b"x"})
    store.close()
    files = [os.readlink(entry) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    assert not [path for path in files if path.startswith(str(tmp_path))]


def test_without_a_folder_it_is_in_the_users_cache_for_nobody_else(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = DiskStore()
    assert store.capacity_bytes == 10 * 1024**3, "as docs/cached_dataset.md says"
    store.write(OWN, {b"1": b"x"})
    store.close()
    files = list((tmp_path / "relaxlab" / "examples").iterdir())
    assert {file.name for file in files} == {"entries.lmdb", "entries.lmdb-lock", "writers.lock"}
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_without_its_library_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ImportError, match=r"needs LMDB: pip install 'relaxlab\[data\]'"):
        DiskStore()


def test_a_file_that_is_none_is_an_error_with_advice(make, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "entries.lmdb").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"cannot be used \(.*; delete it, or give another folder"):
        make().read(OWN, [b"1"])


def test_a_folder_that_takes_no_files(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Not a directory"):
        DiskStore(folder=tmp_path / "file" / "cache").read(OWN, [b"1"])


@pytest.mark.parametrize("capacity", [9, 20e9, "1000000"])
def test_impossible_capacity(capacity):
    expected = f"capacity_bytes must be a whole number of at least 4096, one page, got {capacity}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        DiskStore(capacity_bytes=capacity)
