"""What is heard of workers where the launcher was late to listen."""

import threading
import time
from multiprocessing import Pipe
from typing import Any

import pytest

from experiments.real import supervisor
from experiments.real.failures import RunFailedError
from experiments.real.messages import Alive, Exited, Failed
from experiments.real.supervisor import Supervisor

CREW_DIED = "the process that has forked the workers died"


class Heard:
    """Two workers and the process that has forked them, by their ends of pipes."""

    def __init__(self) -> None:
        pairs = [Pipe() for _ in range(3)]
        *self.workers, self.crew = [theirs for _, theirs in pairs]
        *ours, crew = [ours for ours, _ in pairs]
        self.answers: dict[int, object] = {}
        self.rows: list[object] = []
        self.supervisor = Supervisor(ours, {crew: CREW_DIED}, self._take)

    def _take(self, rank: int | None, message: Any) -> None:
        assert rank is not None
        if message == "done":
            self.answers[rank] = message
        else:
            self.rows.append(message)

    def end(self, rank: int) -> None:
        self.workers[rank].close()
        self.crew.send(Exited(rank, 0))


def test_what_workers_have_said_counts_where_their_end_is_heard_at_the_same_time():
    heard = Heard()
    for row in range(5):
        heard.workers[0].send(row)
    for rank, worker in enumerate(heard.workers):
        worker.send("done")
        heard.end(rank)
    heard.crew.close()
    heard.supervisor.await_all(heard.answers, 10, "finished")
    assert heard.rows == list(range(5))
    assert heard.answers == {0: "done", 1: "done"}


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (lambda heard: heard.end(0), "worker 0 exited with code 0"),
        (lambda heard: heard.crew.close(), CREW_DIED),
        (lambda heard: heard.crew.send(Exited(0, -9)), "worker 0 was killed by SIGKILL"),
    ],
)
def test_an_end_without_a_result_is_a_failure(says, reason, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)
    heard = Heard()
    heard.workers[1].send("done")
    says(heard)
    heard.workers[0].close()
    heard.workers[1].close()
    with pytest.raises(RunFailedError, match=reason):
        heard.supervisor.await_all(heard.answers, 10, "finished")


def test_who_says_that_it_is_alive_may_take_longer_than_the_limit_and_who_does_not_may_not():
    heard = Heard()

    def work():
        for _ in range(12):
            time.sleep(0.3)
            heard.workers[0].send(Alive())

    thread = threading.Thread(target=work)
    began_s = time.monotonic()
    thread.start()
    with pytest.raises(RunFailedError, match="nothing was heard of any worker for 3 s"):
        heard.supervisor.await_all(heard.answers, 3.0, "finished")
    assert 6.5 < time.monotonic() - began_s < 60
    thread.join()
    assert heard.rows == []


def test_that_a_worker_was_alive_does_not_speak_for_it_when_another_fails(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)
    heard = Heard()
    heard.workers[0].send(Alive())
    heard.workers[1].send(Failed("worker 1 waits for worker 0"))
    with pytest.raises(RunFailedError, match="worker 0 is silent; worker 1 waits"):
        heard.supervisor.await_all(heard.answers, 10, "finished")
