"""Whose process serves the store, and how often it is asked."""

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from bagua_algos.communication.at_exit import Departures, ends_with_worker_0


@pytest.mark.parametrize(("agent", "ends"), [(None, True), ("False", True), ("True", False)])
def test_a_store_of_tcp_ends_with_worker_0_unless_torchrun_serves_it(monkeypatch, agent, ends):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if agent is not None:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert ends_with_worker_0(served) == ends
    assert ends_with_worker_0(PrefixStore("inner", PrefixStore("outer", served))) == ends
    assert not ends_with_worker_0(PrefixStore("inner", HashStore()))


class Counting:
    """A store without words, or where one comes after so many questions."""

    def __init__(self, after: int = 1_000_000) -> None:
        self.num_asked, self.after = 0, after

    def check(self, keys: list[str]) -> bool:
        self.num_asked += 1
        return self.num_asked > self.after

    def get(self, key: str) -> bytes:
        return b"7"


def test_whoever_waits_for_a_word_asks_a_hundred_times_a_second_at_most():
    store = Counting()
    departures = Departures(store, "a group", 0, 2)  # pyright: ignore[reportArgumentType]
    assert departures.known(within_s=0.1) == {}
    assert 2 <= store.num_asked <= 12
    assert departures.known_for_s == -1.0


def test_the_first_word_ends_the_wait():
    store = Counting(after=2)
    departures = Departures(store, "a group", 0, 2)  # pyright: ignore[reportArgumentType]
    assert departures.known(within_s=1e6) == {1: 7}
    assert 0.0 <= departures.known_for_s < 1e5
