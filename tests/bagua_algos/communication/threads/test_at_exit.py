import hashlib
import math
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from bagua_algos.communication.threads.at_exit import WORD_S, Departures, let_threads_rest

BYTES = bytes(1 << 26)  # hashed without Python's lock, for which a thread would wait


class Computing:
    """A thread that computes until it is told to stop, or for so many seconds."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._until_s = time.monotonic() + seconds
        self.thread = threading.Thread(target=self._compute)
        self.thread.start()

    def stop(self) -> None:
        self._until_s = -math.inf
        self.thread.join()

    def _compute(self) -> None:
        while time.monotonic() < self._until_s:
            hashlib.sha256(BYTES)


@pytest.fixture(autouse=True)
def _a_process_group(monkeypatch):
    made = threading.Event()
    made.set()
    monkeypatch.setattr("bagua_algos.communication.threads.at_exit.has_process_groups", made)


def test_workers_leave_word_of_their_end():
    store = HashStore()
    ours = [Departures(store, "a group", rank, 3) for rank in range(3)]
    assert ours[0].known() == {}
    ours[2].leave(7)
    assert ours[0].known() == ours[1].known(within_s=60) == {2: 7}
    assert ours[2].known() == Departures(store, "another", 0, 3).known() == {}


@pytest.mark.parametrize(("holder", "known"), [(None, {}), (1, {1: None}), (0, {})])
def test_where_the_store_is_gone_nobody_waits(holder, known):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    departures = Departures(client, "a group", 0, 2, holder)
    assert departures.known() == {}
    del server
    departures.leave(1)
    assert departures.known(within_s=60) == known


def test_what_was_heard_while_there_was_a_store_is_known_for_good():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    departures = Departures(client, "a group", 0, 2, holder=1)
    assert departures.known_for_s < 0
    Departures(server, "a group", 1, 2, holder=1).leave(7)
    assert departures.known(within_s=60) == {1: 7}  # a store does not answer to what it is told
    del server
    assert departures.known() == {1: 7}
    assert departures.known_for_s > 0


def test_the_store_is_asked_at_most_once_in_a_while(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("bagua_algos.communication.threads.at_exit.time.monotonic", lambda: now_s)
    store = HashStore()
    ours = [Departures(store, "a group", rank, 2) for rank in range(2)]
    assert ours[0].lately_known() == {}
    ours[1].leave(7)
    assert ours[0].lately_known() == {}
    now_s += WORD_S
    assert ours[0].lately_known() == {1: 7}


@pytest.mark.parametrize("holder", [0, 1])
def test_whoever_holds_the_store_waits_for_the_others_words(holder):
    store = HashStore()
    ours = [Departures(store, "a group", rank, 2, holder) for rank in range(2)]
    started_s = time.monotonic()
    ours[0].wait_for_the_others(started_s + (0.1 if holder == 0 else 60))
    took_s = time.monotonic() - started_s
    assert took_s > 0.1 if holder == 0 else took_s < 30
    ours[1].leave(1)
    ours[0].wait_for_the_others(math.inf)


def test_the_end_waits_until_no_thread_computes(monkeypatch):
    monkeypatch.setattr("bagua_algos.communication.threads.at_exit.LIMIT_S", 60.0)
    computing = Computing(0.25)
    let_threads_rest()
    assert not computing.thread.is_alive()


def test_the_end_waits_no_longer_than_its_limit():
    computing = Computing()
    let_threads_rest()
    assert computing.thread.is_alive()
    computing.stop()


def test_without_a_process_group_the_end_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(
        "bagua_algos.communication.threads.at_exit.has_process_groups", threading.Event()
    )
    computing = Computing()
    let_threads_rest()
    assert computing.thread.is_alive()
    computing.stop()
