"""Words that workers leave for each other until they have met, among threads."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch._C._distributed_c10d import HashStore, Store

from bagua_algos.communication import rendezvous as module
from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.rendezvous import connect_store, meet

NUM_WORKERS, LIMIT_S = 3, 60


def met(store: Store) -> list[Store]:
    """The part that each worker of one call shares with the others."""
    with ThreadPoolExecutor(NUM_WORKERS) as threads:
        return list(
            threads.map(
                lambda rank: meet(store, rank=rank, world_size=NUM_WORKERS, timeout_s=LIMIT_S),
                range(NUM_WORKERS),
            )
        )


def test_workers_share_what_neither_an_earlier_call_nor_dead_workers_have_left():
    store = HashStore()
    store.set("name of 1", "a worker that is gone")
    first, second = met(store), met(store)
    first[2].set("said", "at first")
    second[0].set("said", "later")
    assert [part.get("said") for part in first] == [b"at first"] * NUM_WORKERS
    assert [part.get("said") for part in second] == [b"later"] * NUM_WORKERS


def test_a_worker_alone_meets_itself():
    meet(HashStore(), rank=0, world_size=1, timeout_s=0.0).set("said", "")


@pytest.mark.parametrize(
    ("rank", "late"),
    [(0, "worker 0: workers 1 and 2 have not come"), (2, "worker 2: worker 0 has not come")],
)
def test_whoever_does_not_come_is_named_after_the_limit(rank, late):
    started_s = time.monotonic()
    with pytest.raises(CommunicationError, match=rf"{late} within 0\.1 s"):
        meet(HashStore(), rank=rank, world_size=NUM_WORKERS, timeout_s=0.1)
    assert 0.1 <= time.monotonic() - started_s < LIMIT_S / 2


def test_whoever_has_come_is_not_waited_for():
    class OneHasCome(HashStore):
        def check(self, keys: list[str]) -> bool:
            return keys[0].startswith("1 is in ") or super().check(keys)

    with pytest.raises(CommunicationError, match=r"worker 0: worker 2 has not come within 0\.1 s"):
        meet(OneHasCome(), rank=0, world_size=3, timeout_s=0.1)


class ComesLate(HashStore):
    """Worker 1 has come when worker 0 looks for so many times."""

    num_looks, at = 0, 1_000

    def check(self, keys: list[str]) -> bool:
        if not keys[0].startswith("1 is in "):
            return super().check(keys)
        self.num_looks += 1
        assert self.num_looks <= 1_000, "it rests between two looks"
        return self.num_looks >= self.at


@pytest.fixture
def clock(monkeypatch):
    """Time passes by sleeping alone."""
    slept_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: sum(slept_s), sleep=slept_s.append)
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_worker_0_looks_for_the_others_fifty_times_a_second(clock):
    store = ComesLate()
    with pytest.raises(CommunicationError, match="worker 0: worker 1 has not come within 10 s"):
        meet(store, rank=0, world_size=2, timeout_s=10.0)
    assert store.num_looks == pytest.approx(500, abs=3)


def test_who_comes_just_at_the_limit_is_met(clock, monkeypatch):
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    store = ComesLate()
    store.at = 3
    meet(store, rank=0, world_size=2, timeout_s=0.0)
    assert store.num_looks == 3


def test_a_store_serves_whoever_knows_its_port_and_one_that_nobody_serves_is_missed():
    made = connect_store("127.0.0.1", 0, makes_it=True, world_size=2, timeout_s=LIMIT_S)
    port = made.port  # pyright: ignore[reportAttributeAccessIssue]
    other = connect_store("127.0.0.1", port, makes_it=False, world_size=2, timeout_s=LIMIT_S)
    other.set("said", "")
    assert made.check(["said"])
    del other, made
    with pytest.raises(CommunicationError, match=rf"no store at 127\.0\.0\.1:{port} within 0\.2 s"):
        connect_store("127.0.0.1", port, makes_it=False, world_size=2, timeout_s=0.2)
