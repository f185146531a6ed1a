import hashlib
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from bagua_algos.communication.at_exit import LIMIT_S, Departures, let_threads_rest

BYTES = bytes(1 << 20)  # hashed without Python's lock


def computing_for(seconds: float) -> threading.Thread:
    until_s = time.monotonic() + seconds

    def compute() -> None:
        while time.monotonic() < until_s:
            hashlib.sha256(BYTES)

    thread = threading.Thread(target=compute)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def _a_process_group(monkeypatch):
    made = threading.Event()
    made.set()
    monkeypatch.setattr("bagua_algos.communication.at_exit.has_process_groups", made)


def test_workers_leave_word_of_their_end():
    store = HashStore()
    ours = [Departures(store, "a group", rank, 3) for rank in range(3)]
    assert ours[0].known() == {}
    ours[2].leave(7)
    assert ours[0].known() == ours[1].known(within_s=60) == {2: 7}
    assert ours[2].known() == Departures(store, "another", 0, 3).known() == {}


def test_where_the_store_is_gone_nobody_waits():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    departures = Departures(client, "a group", 0, 2)
    del server
    departures.leave(1)
    assert departures.known(within_s=60) == {}


def test_the_end_waits_until_no_thread_computes():
    thread = computing_for(LIMIT_S / 4)
    let_threads_rest()
    assert not thread.is_alive()


def test_the_end_waits_no_longer_than_its_limit():
    thread = computing_for(3 * LIMIT_S)
    let_threads_rest()
    assert thread.is_alive()
    thread.join()


def test_without_a_process_group_the_end_waits_for_nobody(monkeypatch):
    monkeypatch.setattr("bagua_algos.communication.at_exit.has_process_groups", threading.Event())
    thread = computing_for(LIMIT_S / 4)
    let_threads_rest()
    assert thread.is_alive()
    thread.join()
