"""The store on a real Redis server, which is killed, full, silent, or another's."""

import os
import pickle
import shutil
import signal
import time

import pytest
import torch
from torch.utils.data import DataLoader

from bagua_algos.data.cached_dataset import CachedDataset
from bagua_algos.data.redis_store import PREFIX, RedisStore
from bagua_algos.data.store import FIRST_PAUSE_S, StoreError, StoreFullError
from bagua_algos.data.values import MISSING, decode, encode
from host.processes import fork, kill
from tests.bagua_algos.data.examples import Sequences
from tests.bagua_algos.data.redis_server import PROGRAM, RedisServer

pytestmark = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason="needs Debian's package redis-server"
)

OWN, OLD = b"b" * 16, b"a" * 16


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.close()


def patient(server) -> RedisStore:
    """Waits for an answer as long as a busy host may take."""
    return RedisStore(address=server.address, timeout_s=60)


@pytest.fixture
def store(server):
    store = patient(server)
    yield store
    store.close()


def test_entries_are_there_for_the_same_data_set_and_key_alone(store, server):
    store.write(OWN, {b"1": b"x", b"2": b""})
    assert store.read(OWN, [b"2", b"3", b"1"]) == [b"", None, b"x"]
    assert store.read(OLD, [b"1"]) == [None]
    store.write(OWN, {b"1": b"y"})
    other = pickle.loads(pickle.dumps(store))  # a spawned worker's
    assert other.read(OWN, [b"1"]) == [b"y"]
    other.close()

    def child() -> int:
        store.write(OWN, {b"child": b"1"})
        return 0 if store.read(OWN, [b"1"]) == [b"y"] else 1

    pids = [fork(child) for _ in range(3)]
    assert [store.read(OWN, [b"2"]) for _ in range(50)] == [[b""]] * 50
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 3
    assert store.read(OWN, [b"child"]) == [b"1"]


def test_a_writer_that_is_killed_leaves_whole_entries(store):
    values = {b"%d" % i: [i, bytes([i % 256]) * 500_000] for i in range(100)}

    def write() -> int:
        for key, value in list(values.items()) * 100:
            store.write(OWN, {key: encode(OWN + key, value)})
        return 0

    pid = fork(write)
    deadline_s = time.monotonic() + 60
    while store.read(OWN, [b"3"]) == [None]:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    kill(pid)
    found = dict(zip(values, store.read(OWN, list(values)), strict=True))
    whole = {key: decode(OWN + key, entry) for key, entry in found.items() if entry is not None}
    assert len(whole) > 3 and MISSING not in whole.values()
    assert whole == {key: values[key] for key in whole}


def test_an_epoch_outlives_the_servers_death_and_the_next_one_uses_it_again(server):
    data = Sequences()
    cached = CachedDataset(data, patient(server))
    now_s = [0.0]
    cached.store._clock = lambda: now_s[0]
    loader = DataLoader(cached, batch_size=5, collate_fn=list)

    def right(batches) -> bool:
        examples = [example for batch in batches for example in batch]
        return all(x.equal(y) for x, y in zip(examples, data.examples, strict=True))

    assert right(loader) and data.num_read == 50
    assert right(loader) and data.num_read == 50
    batches = iter(loader)
    first = [next(batches) for _ in range(4)]
    server.kill()
    with pytest.warns(
        RuntimeWarning, match=r"the cache at redis://127\S+ cannot be used"
    ) as warned:
        assert right([*first, *batches])
        assert right(loader)
    assert len(warned) == 1 and data.num_read == 50 + 30 + 50
    server.start()
    assert right(loader) and data.num_read == 180, "not asked again so soon"
    now_s[0] = FIRST_PAUSE_S + 1
    assert right(loader) and data.num_read == 230
    assert right(loader) and data.num_read == 230
    cached.store.close()


def test_a_server_that_hangs_costs_one_timeout_and_one_warning(server, monkeypatch):
    data, asked = Sequences(), []
    cached = CachedDataset(data, RedisStore(address=server.address, timeout_s=1.0))
    cached.store._clock = lambda: 0.0  # it is never asked again
    assert cached[0].equal(data.examples[0])
    os.kill(server.process.pid, signal.SIGSTOP)

    def counted(function):
        return lambda *arguments: asked.append(function) or function(*arguments)

    for name in ("read", "write"):
        monkeypatch.setattr(RedisStore, name, counted(getattr(RedisStore, name)))
    started_s = time.monotonic()
    with pytest.warns(RuntimeWarning, match="Timeout") as warned:
        assert all(cached[i].equal(data.examples[i]) for i in range(50))
    assert (len(warned), len(asked)) == (1, 1) and time.monotonic() - started_s < 60
    assert cached.num_computed == 1 + 50
    cached.store.close()


def test_a_full_server_is_read_and_not_written(tmp_path):
    server = RedisServer(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    server.start()
    store = patient(server)
    with pytest.raises(StoreFullError, match="is full: give the server more maxmemory"):
        for i in range(1000):
            store.write(OWN, {b"%d" % i: b"x" * 50_000})
    assert store.read(OWN, [b"0"]) == [b"x" * 50_000]
    store.close()
    server.close()


def test_a_server_that_forgets_is_used_on(tmp_path):
    server = RedisServer(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
    server.start()
    data = [torch.full((5_000,), float(i)) for i in range(200)]
    cached = CachedDataset(data, patient(server))
    for _ in range(2):
        assert all(cached[i].equal(data[i]) for i in range(200))
    assert 200 < cached.num_computed <= 400
    cached.store.close()
    server.close()


def test_what_a_stranger_has_written_is_computed_anew(server, store):
    data = Sequences()
    cached = CachedDataset(data, store)
    cached[3]
    client = store._client()
    [key] = client.keys(PREFIX + b"*")
    entry = client.get(key)
    for strange in (b"", entry[:-1], b"RLX1" + entry[4:-1] + b"\0", pickle.dumps(Sequences())):
        client.set(key, strange)
        before = cached.num_computed
        assert cached[3].equal(data.examples[3])
        assert cached.num_computed == before + 1
    assert client.get(key) == entry, "and written again"


@pytest.mark.parametrize(
    "address", ["redis://127.0.0.1:1", "redis://user:secret@127.0.0.1:1", "unix:///nowhere"]
)
def test_nobody_at_the_address(address):
    store = RedisStore(address=address, timeout_s=0.5)
    with pytest.raises(StoreError, match="cannot be used") as failure:
        store.read(OWN, [b"1"])
    assert "secret" not in str(failure.value)


def test_no_address():
    with pytest.raises(ValueError, match="give redis://host:port"):
        RedisStore(address="http://127.0.0.1")
    with pytest.raises(ValueError, match="timeout_s"):
        RedisStore(address="redis://127.0.0.1", timeout_s=0)
