"""A lane's thread, and what the end of a process makes of it."""

import gc
import threading
import time
import weakref

import pytest

from bagua_algos.communication.threads import job_thread as module
from bagua_algos.communication.threads.job_thread import JobThread

LIMIT_S = 20


@pytest.fixture(autouse=True)
def end(monkeypatch):
    """The end of a process that has no threads but the test's; what it has done."""
    found = {"held": [], "rested": 0}

    def rest() -> None:
        found["rested"] += 1

    monkeypatch.setattr(module, "_LIVING", weakref.WeakSet())
    monkeypatch.setattr(module, "_LAST_WORDS", {})
    monkeypatch.setattr(module, "_hold", found["held"].append)
    monkeypatch.setattr(module, "let_threads_rest", rest)
    monkeypatch.setattr(module, "LEAVE_S", LIMIT_S)
    return found


def test_jobs_run_in_order_and_an_error_is_of_its_own_job():
    thread, ran = JobThread(), []

    def fail() -> None:
        ran.append("failing")
        raise ArithmeticError("lost")

    futures = [thread.submit(job) for job in (lambda: ran.append("first"), fail)]
    last = thread.submit(lambda: ran.append("last"))
    assert last.result(LIMIT_S) is None
    assert ran == ["first", "failing", "last"]
    assert futures[0].result() is None
    with pytest.raises(ArithmeticError, match="lost"):
        futures[1].result()
    thread.close()


def test_what_has_not_begun_is_dropped_and_the_thread_ends_after_its_job():
    thread, begun, go_on = JobThread(), threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)

    running = thread.submit(job)
    waiting = [thread.submit(lambda: None) for _ in range(2)]
    assert begun.wait(LIMIT_S)
    thread.close()
    assert all(future.cancelled() for future in waiting)
    assert thread._thread.is_alive() and not running.done()
    go_on.set()
    thread._thread.join(LIMIT_S)
    assert not thread._thread.is_alive() and running.result() is None


def test_a_job_that_was_cancelled_is_left_out():
    thread, begun, go_on, ran = JobThread(), threading.Event(), threading.Event(), []
    thread.submit(lambda: begun.set() or go_on.wait(LIMIT_S))  # pyright: ignore
    cancelled = thread.submit(lambda: ran.append("cancelled"))
    last = thread.submit(lambda: ran.append("last"))
    assert begun.wait(LIMIT_S) and cancelled.cancel()
    go_on.set()
    last.result(LIMIT_S)
    assert ran == ["last"]
    thread.close()


def test_a_thread_that_nobody_has_any_longer_ends():
    thread = JobThread()
    its_own = thread._thread
    assert its_own.daemon, "no thread keeps a process from ending"
    del thread
    gc.collect()
    its_own.join(LIMIT_S)
    assert not its_own.is_alive()


def test_the_end_of_a_process_speaks_before_it_waits_and_concludes_after_that(end):
    thread, begun, said = JobThread(), threading.Event(), []
    go_on = threading.Event()

    def job() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)
        said.append("a job")

    thread.at_end(lambda: said.append("before") or go_on.set(), said.append)
    running, dropped = thread.submit(job), thread.submit(lambda: said.append("another job"))
    assert begun.wait(LIMIT_S)
    earliest_s = time.monotonic() + module.LEAVE_S
    module._leave_all()
    *others, until_s = said
    assert others == ["before", "a job"]
    assert earliest_s <= until_s <= time.monotonic() + module.LEAVE_S
    assert running.done() and dropped.cancelled()
    assert end == {"held": [], "rested": 1}


def test_a_job_without_an_end_is_held_after_a_while(end, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_S", 0.2)
    threads = [JobThread(), JobThread()]
    begun, go_on = threading.Semaphore(0), threading.Event()
    for thread in threads:
        thread.submit(lambda: begun.release() or go_on.wait(LIMIT_S))  # pyright: ignore
        assert begun.acquire(timeout=LIMIT_S)
    started_s = time.monotonic()
    module._leave_all()
    assert time.monotonic() - started_s >= module.LEAVE_S
    assert sorted(end["held"]) == sorted(thread._thread.ident for thread in threads)
    go_on.set()


def test_who_was_closed_before_or_has_ended_has_nothing_to_say(end):
    said, closed, kept = [], JobThread(), JobThread()
    for name, thread in (("closed", closed), ("kept", kept)):
        thread.at_end(lambda name=name: said.append(name), lambda until_s: None)
    closed.close()
    module._leave_all()
    assert said == ["kept"]
    kept._thread.join(LIMIT_S)
    module._leave_all()
    assert said == ["kept"], "once"
    assert end == {"held": [], "rested": 2}


def test_words_keep_a_thread_that_nobody_else_has():
    thread = JobThread()
    its_own = thread._thread
    thread.at_end(lambda: None, lambda until_s: None)
    del thread
    gc.collect()
    its_own.join(0.1)
    assert its_own.is_alive()
    module._leave_all()
    assert not its_own.is_alive()
