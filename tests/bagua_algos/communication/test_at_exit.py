import hashlib
import threading
import time

import pytest

from bagua_algos.communication.at_exit import LIMIT_S, let_threads_rest

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
