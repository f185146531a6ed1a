"""Real workers that wait for nobody: threads that share a meeting stand for the processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from bagua_algos.communication.communicator import CommunicationError
from experiments.real import pace as module
from experiments.real.pace import Meeting, OwnSteps, StoreMeeting

LIMIT = 12


class CountedSteps:
    """In place of training steps; between two of them `between` is called with their number."""

    def __init__(self, between: Callable[[int], None]) -> None:
        self.taken = []
        self._between = between

    def read_ahead(self, batches, start):
        pass

    def __call__(self, step):
        self._between(step)
        self.taken.append(step)
        return step


class Others:
    """A meeting at which the last worker comes to each step when this one has taken so many."""

    def __init__(self, when):
        self.when, self.own, self.said = when, 0, []

    def come(self, step):
        self.said.append(step)

    def is_complete(self, step):
        return step in self.said and self.own >= self.when[step]


BATCHES = SimpleNamespace(indices=lambda step: step)


@pytest.fixture(autouse=True)
def no_background(monkeypatch):
    monkeypatch.setattr(module, "_check_background", lambda take_step: None)


def counts(meeting, when_taken, dues):
    own, done = OwnSteps(meeting, limit_s=0.05), 0
    steps, counts = CountedSteps(when_taken), []
    for due in dues:
        done += sum(1 for _ in own(BATCHES, steps, done, due, LIMIT))
        counts.append(done)
        assert own.steps_w().tolist() == [done]
    assert steps.taken == list(range(done))
    return counts


def test_a_fast_worker_goes_on_until_the_last_has_come_and_stops_between_two_steps():
    others = Others({3: 7, 6: 7, 9: 12, 12: 12})

    def taken(step):
        others.own = step + 1

    assert counts(others, taken, (3, 6, 9, 12)) == [7, 7, 12, 12]
    assert others.said == [3, 6, 9, 12]  # each once


def test_the_last_worker_stops_at_each_evaluation():
    others = Others({3: 0, 6: 0, 9: 0, 12: 0})
    assert counts(others, lambda step: None, (3, 6, 9, 12)) == [3, 6, 9, 12]


def test_who_never_comes_is_waited_for_no_longer_than_the_limit():
    others = Others({3: 1000})
    own = OwnSteps(others, limit_s=0.02)
    assert sum(1 for _ in own(BATCHES, CountedSteps(lambda step: None), 0, 3, LIMIT)) == LIMIT
    with pytest.raises(CommunicationError, match=r"have done 3 steps 0\.02 s after this one"):
        own.wait(3)


def test_processes_of_a_starter_meet_in_their_store():
    store, lock = HashStore(), Lock()

    def run(rank):
        meeting: Meeting = StoreMeeting(store, 2)
        own, done, counts = OwnSteps(meeting, limit_s=60), 0, []
        for due in (4, 8, LIMIT):
            done += sum(1 for _ in own(BATCHES, CountedSteps(lambda _: None), done, due, LIMIT))
            own.wait(due)
            with lock:
                counts.append(done)
        return counts

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(run, range(2)))
    assert all(own >= due for counts in both for own, due in zip(counts, (4, 8, 12), strict=True))
    assert [counts[-1] for counts in both] == [LIMIT, LIMIT]
