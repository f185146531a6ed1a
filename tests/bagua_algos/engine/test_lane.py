import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest
import torch

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.threads import job_thread
from bagua_algos.engine.lane import CommunicationLane
from host.processes import fork
from tests.bagua_algos.fake_cuda import DEVICE, FakeCuda


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


@pytest.fixture
def lane(cuda):
    lane = CommunicationLane(StackedCommunicator(1), DEVICE, timeout_s=60)
    yield lane
    lane.close()


def job_of(cuda: FakeCuda, name: str):
    return lambda: cuda.log.append((cuda.current_stream().name, "run", name))


def test_a_job_runs_on_the_lanes_stream_between_what_it_needs_and_who_needs_it(cuda, lane):
    lane.submit("a job", job_of(cuda, "job"))
    lane.wait()
    assert cuda.log == [
        ("compute", "record", "event 1"),
        ("lane", "wait for", "event 1"),
        ("lane", "run", "job"),
        ("lane", "record", "event 2"),
        ("compute", "wait for all of", "lane"),
    ]


def test_each_job_waits_for_the_compute_enqueued_before_it(cuda, lane):
    for name in ("first", "second"):
        lane.submit(name, job_of(cuda, name))
    lane.wait()
    ready = [event for stream, what, event in cuda.log if (stream, what) == ("compute", "record")]
    on_lane = [(what, name) for stream, what, name in cuda.log if stream == "lane"]
    assert len(ready) == 2
    for event, name in zip(ready, ("first", "second"), strict=True):
        assert on_lane[on_lane.index(("wait for", event)) + 1] == ("run", name)


def test_the_caller_goes_on_while_the_gpu_is_at_work(cuda, lane):
    cuda.is_done = False
    lane.submit("a job", job_of(cuda, "job"))
    lane.wait()  # returns: the job is enqueued
    assert not lane.is_idle
    cuda.is_done = True
    assert lane.is_idle


def test_a_job_of_another_lane_waits_for_the_stream_that_submits_it(cuda, lane):
    other = CommunicationLane(StackedCommunicator(1), DEVICE, timeout_s=60)
    lane.submit("outer", lambda: other.submit("inner", job_of(cuda, "inner")))
    lane.wait()
    other.wait()
    other.close()
    # compute's event for the outer job, then the lane's own for the inner one
    assert ("lane", "record", "event 2") in cuda.log
    assert ("lane", "wait for", "event 2") in cuda.log


def test_a_failed_job_is_told_and_no_later_one_is_tried(cuda, lane):
    def fail():
        raise CommunicationError("the first")

    lane.submit("a job", fail)
    lane.submit("another", job_of(cuda, "another"))
    with pytest.raises(CommunicationError, match="the first"):
        lane.wait()
    with pytest.raises(CommunicationError, match="not tried after: the first"):
        lane.wait()
    assert ("lane", "run", "another") not in cuda.log


class Workers(StackedCommunicator):
    """One worker, which waits for others; and whether its connections may serve another lane."""

    def __init__(self, awaited: tuple[int, ...] = ()) -> None:
        super().__init__(1)
        self._awaited, self.is_closed = awaited, False

    @property
    def awaited(self) -> tuple[int, ...]:
        return self._awaited

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("awaited", "said"),
    [((), r"within 0\.05 s$"), ((1, 2), r"within 0\.05 s: it waits for workers 1, 2$")],
)
def test_a_job_without_an_end_is_named_and_so_are_those_that_it_waits_for(awaited, said):
    lane = CommunicationLane(Workers(awaited), torch.device("cpu"), timeout_s=0.05)
    release = threading.Event()
    lane.submit("the slow one", release.wait)
    with pytest.raises(CommunicationError, match=r"^the slow one has not finished " + said):
        lane.wait()
    release.set()
    lane.close()


def test_an_interrupted_wait_ends_the_lane(monkeypatch):
    """The job goes on, and who called would find it anywhere."""

    def interrupted(future, timeout_s):
        raise KeyboardInterrupt

    lane = CommunicationLane(Workers(), torch.device("cpu"), timeout_s=60)
    release, ran = threading.Event(), []
    lane.submit("the slow one", release.wait)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Future, "exception", interrupted)
        lane.wait()
    release.set()
    lane.submit("another", lambda: ran.append("another"))
    with pytest.raises(CommunicationError, match="the wait for the slow one was interrupted"):
        lane.wait()
    assert ran == []
    lane.close()


def test_what_has_not_begun_is_dropped_where_the_lane_is_closed():
    lane = CommunicationLane(Workers(), torch.device("cpu"), timeout_s=60)
    release, ran = threading.Event(), []
    lane.submit("under way", release.wait)
    lane.submit("another", lambda: ran.append("another"))
    lane.close()
    release.set()
    with pytest.raises(CancelledError):
        lane.wait()
    assert ran == []


def test_connections_serve_another_lane_where_all_is_done_and_well():
    def fail() -> None:
        raise CommunicationError("worker 1 is gone")

    well, failed, busy = [Workers() for _ in range(3)]
    lanes = [CommunicationLane(own, torch.device("cpu"), 60) for own in (well, failed, busy)]
    release = threading.Event()
    for lane, job in zip(lanes, (lambda: None, fail, release.wait), strict=True):
        lane.submit("a job", job)
    lanes[0].wait()
    with pytest.raises(CommunicationError, match="worker 1 is gone"):
        lanes[1].wait()
    for lane in lanes:
        lane.close()
    release.set()
    assert [own.is_closed for own in (well, failed, busy)] == [True, False, False]


class OnCpu:
    """A lane of the CPU, and where its jobs have run, in turn."""

    def __init__(self) -> None:
        self.lane = CommunicationLane(StackedCommunicator(1), torch.device("cpu"), timeout_s=60)
        self.ran: list[tuple[str, bool]] = []

    def submit(self, name: str, *, by_caller: bool = False) -> None:
        def job() -> None:
            self.ran.append((name, threading.current_thread() is threading.main_thread()))

        self.lane.submit(name, job, by_caller=by_caller)


@pytest.fixture
def on_cpu() -> Iterator[OnCpu]:
    own = OnCpu()
    yield own
    own.lane.close()


def test_a_job_that_is_left_to_the_caller_runs_where_it_waits(on_cpu):
    on_cpu.submit("first")
    on_cpu.lane.wait()
    on_cpu.submit("left", by_caller=True)
    assert not on_cpu.lane.is_idle
    assert on_cpu.ran == [("first", False)]
    on_cpu.lane.wait()
    assert on_cpu.ran == [("first", False), ("left", True)]
    assert on_cpu.lane.is_idle


class Label(str):
    """Of a job, which one can see go away."""


def test_jobs_that_nobody_waits_for_do_not_pile_up(on_cpu):
    """As those of the background, where training is long."""
    labels = []
    for _ in range(4):
        label, is_under_way = Label("a job"), threading.Event()
        on_cpu.lane.submit(label, is_under_way.set)
        labels.append(weakref.ref(label))
        assert is_under_way.wait(20)  # so those before are done
    del label
    gc.collect()
    assert [alive() for alive in labels[:2]] == [None, None]
    on_cpu.lane.wait()


def test_jobs_keep_their_order_whoever_does_them(on_cpu):
    """The lane does what was left to the caller where another job is under way, or follows."""
    under_way = threading.Event()
    on_cpu.lane.submit("under way", lambda: under_way.wait(60))
    on_cpu.submit("second", by_caller=True)
    under_way.set()
    on_cpu.lane.wait()
    on_cpu.submit("third", by_caller=True)
    on_cpu.submit("fourth")
    on_cpu.lane.wait()
    assert on_cpu.ran == [("second", False), ("third", False), ("fourth", False)]


def test_a_job_that_fails_at_the_caller_ends_the_lane(on_cpu):
    def fail() -> None:
        raise CommunicationError("the first")

    on_cpu.lane.submit("a job", fail, by_caller=True)
    with pytest.raises(CommunicationError, match=r"^the first$"):
        on_cpu.lane.wait()
    on_cpu.submit("another", by_caller=True)
    with pytest.raises(CommunicationError, match="not tried after: the first"):
        on_cpu.lane.wait()
    assert on_cpu.ran == []


def test_a_job_that_was_left_to_the_caller_is_dropped_where_the_lane_is_closed():
    lane = CommunicationLane(StackedCommunicator(1), torch.device("cpu"), timeout_s=60)
    ran = []
    lane.submit("a job", lambda: ran.append("a job"), by_caller=True)
    lane.wait()
    lane.submit("another", lambda: ran.append("another"), by_caller=True)
    lane.close()
    assert lane.is_idle
    lane.wait()
    assert ran == ["a job"]


def test_the_end_of_the_process_calls_what_a_lane_was_given_for_it(monkeypatch):
    monkeypatch.setattr(job_thread, "_LIVING", weakref.WeakSet())
    monkeypatch.setattr(job_thread, "_LAST_WORDS", {})
    monkeypatch.setattr(job_thread, "let_threads_rest", lambda: None)
    lane, said = CommunicationLane(StackedCommunicator(1), torch.device("cpu"), timeout_s=60), []
    lane.at_end(lambda: said.append("before"), lambda until_s: said.append("after"))
    job_thread._leave_all()
    assert said == ["before", "after"]


def test_a_process_that_was_suspended_has_not_waited_meanwhile():
    """As by Ctrl-Z, or on a machine that slept."""

    def work() -> int:
        lane = CommunicationLane(StackedCommunicator(1), torch.device("cpu"), timeout_s=4)
        lane.submit("a job", lambda: [time.sleep(0.02) for _ in range(50)] and None)
        lane.wait()
        return 0

    child = fork(work)
    time.sleep(0.3)
    os.kill(child, signal.SIGSTOP)
    time.sleep(4.5)
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_job_raises_is_raised_though_it_is_called_a_timeout(lane):
    def job() -> None:
        raise TimeoutError("of its own")

    lane.submit("a job", job)
    with pytest.raises(TimeoutError, match="of its own"):
        lane.wait()
