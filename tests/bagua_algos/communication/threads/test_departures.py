"""Whose process serves the store, and how often it is asked."""

import threading

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from bagua_algos.communication.threads import at_exit as module
from bagua_algos.communication.threads.at_exit import Departures, ends_with_worker_0


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


def test_whoever_waits_for_a_word_asks_a_hundred_times_a_second_at_most(clock):
    clock.step_s = None
    store = Counting()
    departures = Departures(store, "a group", 0, 2)  # pyright: ignore[reportArgumentType]
    assert departures.known(within_s=1.0) == {}
    assert store.num_asked == 101
    assert departures.known_for_s == -1.0


def test_the_first_word_ends_the_wait():
    store = Counting(after=2)
    departures = Departures(store, "a group", 0, 2)  # pyright: ignore[reportArgumentType]
    assert departures.known(within_s=1e6) == {1: 7}
    assert 0.0 <= departures.known_for_s < 1e5


class Clock:
    """Time that passes by sleeping, half a second at a time, whatever the pause; as long as the
    pause, where `step_s` is None.
    """

    step_s: float | None = 0.5

    def __init__(self, monkeypatch) -> None:
        self.now_s, self.num_sleeps = 100.0, 0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(module.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.num_sleeps += 1
        self.now_s += seconds if self.step_s is None else self.step_s


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_wait_for_a_word_ends_at_its_time(clock):
    store = Counting()
    departures = Departures(store, "a group", 0, 2)  # pyright: ignore[reportArgumentType]
    departures.known(within_s=2.0)
    assert (store.num_asked, clock.now_s) == (5, 102.0)
    departures.known()
    assert (store.num_asked, clock.now_s) == (6, 102.0)


def test_the_time_since_the_first_word_is_that_of_the_first(clock):
    departures = Departures(store := Counting(after=3), "a group", 0, 3)  # pyright: ignore
    assert departures.known() == {}
    clock.now_s = 107.0
    assert departures.known() == {2: 7} and departures.known_for_s == 0.0
    clock.now_s = 110.0
    assert departures.known() == {1: 7, 2: 7} and departures.known_for_s == 3.0
    num_asked = store.num_asked
    departures.known()
    assert store.num_asked == num_asked, "who has ended is not asked for again"


@pytest.mark.parametrize(("until_s", "num_sleeps"), [(99.0, 0), (100.0, 1), (101.0, 3)])
def test_whoever_holds_the_store_waits_up_to_the_time_given(clock, until_s, num_sleeps):
    departures = Departures(Counting(), "a group", 0, 2, holder=0)  # pyright: ignore
    departures.wait_for_the_others(until_s)
    assert clock.num_sleeps == num_sleeps


@pytest.mark.parametrize(
    ("running", "num_looks"),
    [([False, False], 2), ([True, False, True, False, False], 4), ([False, True, False, False], 4)],
)
def test_threads_rest_where_two_looks_in_a_row_find_none_at_work(
    monkeypatch, clock, running, num_looks
):
    """Or after two seconds, which are four looks here."""
    monkeypatch.setattr(module, "LIMIT_S", 2.0)
    monkeypatch.setattr(module, "has_process_groups", threading.Event())
    looks = iter(running)
    monkeypatch.setattr(module, "_others_run", lambda: next(looks))
    module.has_process_groups.set()
    module.let_threads_rest()
    assert (clock.num_sleeps, clock.now_s) == (num_looks, 100.0 + num_looks / 2)
