"""On which lanes an algorithm acts, who hears of it, and what training has waited."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from bagua_algos import Algorithm, AsyncModelAverage
from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Context
from bagua_algos.engine.dispatcher import Dispatcher

CPU = torch.device("cpu")


class Between(LoopbackCommunicator):
    """One of two processes, with connections of its own in every duplicate."""

    def __init__(self, log: list | None = None, number: int = 0) -> None:
        super().__init__(2)
        self.log, self.number = [] if log is None else log, number

    def duplicate(self) -> "Between":
        self.log.append("duplicated")
        return Between(self.log, self.log.count("duplicated"))

    def limit_waits(self, limit_s: float) -> None:
        self.log.append(("limited", self.number, limit_s))

    def use_transport(self, **options: object) -> None:
        self.log.append((self.number, options))

    def close(self) -> None:
        self.log.append(("closed", self.number))


@dataclass(frozen=True, kw_only=True)
class Acting(Algorithm):
    acted: list = field(default_factory=list)

    def on_bucket_ready(self, context, bucket):
        thread = threading.current_thread()
        self.acted.append((bucket.index, context.communicator.number, thread))

    def on_step_end(self, context):
        self.acted.append(("step end", context.communicator.number))


class InMemory(Between):
    """All-reduces go through memory that both processes share."""

    @property
    def shares_memory(self) -> bool:
        return True

    def duplicate(self) -> "InMemory":
        super().duplicate()
        return InMemory(self.log, self.log.count("duplicated"))


@dataclass(frozen=True, kw_only=True)
class Averaging(Acting):
    """Any thread may do a bucket's job."""

    @property
    def only_averages(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Ordered(Algorithm):
    def on_forward(self, context):
        pass


@dataclass
class Bucket:
    index: int
    ended: list[str] = field(default_factory=list)

    def end_moment(self, moment: str) -> None:
        self.ended.append(moment)


def dispatcher_of(algorithm, communicator, num_buckets=5, **options):
    return Dispatcher(
        algorithm, communicator, CPU, num_buckets=num_buckets, timeout_s=20, **options
    )


@pytest.mark.parametrize(
    ("algorithm", "communicator", "num_buckets", "num_lanes"),
    [
        (Acting(), Between(), 5, 2),
        (Acting(), Between(), 1, 1),
        (Acting(), StackedCommunicator(2), 5, 1),
        (Acting(), LoopbackCommunicator(1), 5, 1),
        (Ordered(), Between(), 5, 1),  # what waits for a forward goes before all buckets
    ],
)
def test_two_lanes_where_processes_may_communicate_in_any_order(
    algorithm, communicator, num_buckets, num_lanes
):
    dispatcher = dispatcher_of(algorithm, communicator, num_buckets)
    assert dispatcher.num_lanes == dispatcher.num_used == num_lanes
    assert dispatcher.background is None
    dispatcher.close()


def test_workers_are_compared_in_jobs_of_the_first_lane_before_there_is_a_second():
    workers, found = Between(), []

    def check(among, run):
        run("a comparison", lambda: found.append((among.number, threading.current_thread())))
        found.append(workers.log.count("duplicated"))

    dispatcher = dispatcher_of(Acting(), workers, check=check)
    (number, thread), num_made = found
    assert number == num_made == 1 and thread is not threading.current_thread()
    assert dispatcher.num_lanes == 2
    dispatcher.close()


def test_workers_that_cannot_begin_are_told_so_and_leave_no_connection():
    workers = Between()

    def check(among, run):
        raise ValueError("the workers' models differ")

    with pytest.raises(ValueError, match="the workers' models differ"):
        dispatcher_of(AsyncModelAverage(), workers, check=check)
    assert workers.log == ["duplicated", ("limited", 1, 20), ("closed", 1)]


def context_of(buckets):
    return Context(buckets=buckets, communicator=None, optimizer=None)  # pyright: ignore


def test_a_bucket_is_always_on_the_same_lane_and_what_ends_a_moment_is_told_its_buckets():
    algorithm, buckets = Acting(), [Bucket(index) for index in range(4)]
    dispatcher = dispatcher_of(algorithm, Between())
    for bucket in buckets:
        dispatcher.submit_moment("on_bucket_ready", context_of(buckets), bucket)
    dispatcher.wait_exposed()
    on_lane = {index: (number, thread) for index, number, thread in algorithm.acted}
    assert [on_lane[index][0] for index in range(4)] == [1, 2, 1, 2]
    assert on_lane[0] == on_lane[2] != on_lane[1] == on_lane[3]
    assert [bucket.ended for bucket in buckets] == [["on_bucket_ready"]] * 4
    dispatcher.submit_moment("on_step_end", context_of(buckets))
    dispatcher.submit_moment("on_pause", context_of(buckets))  # it does nothing there
    dispatcher.wait_exposed()
    assert algorithm.acted[4:] == [("step end", 1)]
    assert [bucket.ended for bucket in buckets] == [["on_bucket_ready", "on_step_end"]] * 4
    dispatcher.close()


@pytest.mark.parametrize(
    ("algorithm", "workers", "options", "by_caller"),
    [
        (Averaging(), InMemory(), {}, {0: False, 1: False, 2: True}),
        (Averaging(), InMemory(), {"may_wait": False}, dict.fromkeys(range(3), False)),
        (Averaging(), Between(), {}, dict.fromkeys(range(3), False)),
        (Acting(), InMemory(), {}, dict.fromkeys(range(3), False)),
    ],
    ids=["an average in shared memory", "no wait comes next", "over a network", "more than one"],
)
def test_the_last_bucket_is_left_to_who_waits_where_its_job_is_an_average_in_shared_memory(
    algorithm, workers, options, by_caller
):
    algorithm, buckets = type(algorithm)(), [Bucket(index) for index in range(3)]
    dispatcher = dispatcher_of(algorithm, workers)
    for bucket in buckets:
        dispatcher.submit_moment("on_bucket_ready", context_of(buckets), bucket, **options)
        if bucket.index < 2:
            dispatcher.wait_exposed()  # so that the lanes of the last two have nothing else to do
    dispatcher.wait_exposed()
    here = threading.current_thread()
    assert {index: thread is here for index, _, thread in algorithm.acted} == by_caller
    dispatcher.close()


def test_who_waits_does_the_last_bucket_while_the_other_lane_is_at_work():
    last_is_done = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Meeting(Averaging):
        def on_bucket_ready(self, context, bucket):
            if bucket.index == 1:
                last_is_done.set()
            else:
                assert last_is_done.wait(20), "the last bucket has not begun"

    buckets = [Bucket(0), Bucket(1)]
    dispatcher = dispatcher_of(Meeting(), InMemory())
    for bucket in buckets:
        dispatcher.submit_moment("on_bucket_ready", context_of(buckets), bucket)
    dispatcher.wait_exposed()
    dispatcher.close()


class LaneError(Exception):
    pass


def failing(among, bucket):
    raise LaneError(f"bucket {bucket.index}")


def test_after_an_error_on_one_lane_no_lane_takes_a_job():
    """Other workers may wait for what no longer comes."""
    dispatcher = dispatcher_of(Acting(), Between())
    with pytest.raises(LaneError, match="bucket 1"):
        dispatcher.run_buckets("label", failing, [Bucket(1)])  # pyright: ignore
    ran = []
    with pytest.raises(CommunicationError, match="not tried after: bucket 1"):
        dispatcher.run("on the first lane", lambda: ran.append("run"))
    assert ran == []
    dispatcher.close()


def test_buckets_may_be_on_fewer_lanes_of_another_transport():
    algorithm, workers = Acting(), Between()
    dispatcher = dispatcher_of(algorithm, workers)
    options = {"streams": 3, "halving_doubling_bytes": 7, "fixed_order": True, "pieces": True}
    dispatcher.use(1, **options)
    assert (dispatcher.num_lanes, dispatcher.num_used) == (2, 1)
    made = ["duplicated", ("limited", 1, 20), "duplicated", ("limited", 2, 20)]
    assert workers.log == [*made, (1, options), (2, options)]
    ran = []
    buckets = [Bucket(0), Bucket(1)]
    dispatcher.run_buckets("label", lambda among, b: ran.append((among.number, b.index)), buckets)  # pyright: ignore
    dispatcher.submit_moment("on_bucket_ready", context_of(buckets), buckets[1])  # pyright: ignore
    dispatcher.run("label", lambda: ran.append("run"))
    assert ran == [(1, 0), (1, 1), "run"]
    assert [number for _, number, _ in algorithm.acted] == [1]
    dispatcher.close()
    assert workers.log[6:] == [("closed", 1), ("closed", 2)]


def test_the_background_has_a_lane_of_its_own_which_is_closed_with_the_others():
    workers = Between()
    dispatcher = dispatcher_of(AsyncModelAverage(), workers)
    assert dispatcher.background is not None
    assert dispatcher.background.communicator.number == 3  # pyright: ignore
    dispatcher.close()
    assert workers.log[6:] == [("closed", 1), ("closed", 2), ("closed", 3)]


def test_an_algorithm_acts_where_it_overrides():
    dispatcher = dispatcher_of(Acting(), Between())
    assert dispatcher.acts_at("on_bucket_ready") and not dispatcher.acts_at("on_forward")
    assert dispatcher.acts_on_gradients and dispatcher.acts_on_weights
    assert dispatcher.may_take_gradients
    dispatcher.close()
    dispatcher = dispatcher_of(Ordered(), Between())
    assert dispatcher.acts_on_weights and not dispatcher.acts_on_gradients
    assert not dispatcher.may_take_gradients
    dispatcher.close()
    dispatcher = dispatcher_of(WhereStepsBegin(), Between())
    assert dispatcher.may_take_gradients and not dispatcher.acts_on_gradients
    dispatcher.close()


class WhereStepsBegin(Algorithm):
    def on_step_begin(self, context):
        pass


class Observer:
    def __init__(self):
        self.heard = []

    def on_submit(self, moment, bucket):
        self.heard.append(("submitted", moment, bucket, threading.current_thread()))

    def on_job(self, moment, bucket):
        self.heard.append(("begun", moment, bucket, threading.current_thread()))

    def on_job_end(self, moment, bucket):
        self.heard.append(("done", moment, bucket, threading.current_thread()))


@pytest.mark.parametrize("index", [None, 0, 3])
def test_an_observer_hears_of_a_job_on_the_thread_where_it_is(index):
    observer, algorithm, bucket = Observer(), Acting(), index if index is None else Bucket(index)
    dispatcher = dispatcher_of(algorithm, Between(), observer=observer)
    moment = "on_step_end" if index is None else "on_bucket_ready"
    dispatcher.submit_moment(moment, context_of([]), bucket)  # pyright: ignore
    dispatcher.wait_exposed()
    assert [words[:3] for words in observer.heard] == [
        (what, moment, index) for what in ("submitted", "begun", "done")
    ]
    here, lane, end = (words[3] for words in observer.heard)
    assert here is threading.current_thread() and lane is end is not here
    dispatcher.close()


class Clock(Observer):
    """Simulated clocks."""

    exposed_communication_s = 40.0

    def now_w(self): ...

    @contextmanager
    def background(self):
        yield

    def background_done_w(self): ...

    def background_wait(self): ...


def test_what_training_waited_is_of_one_clock_and_goes_on_from_what_was_loaded(monkeypatch):
    seconds = iter([1.0, 3.5, 10.0, 10.25])
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr("bagua_algos.engine.stopwatch.time", clock)
    dispatcher = dispatcher_of(Acting(), Between())
    dispatcher.wait_exposed()
    assert dispatcher.exposed_communication_s == 2.5
    ran = []
    dispatcher.run_exposed("label", lambda: ran.append("run"))
    assert ran and dispatcher.exposed_communication_s == 2.75
    dispatcher.run("label", lambda: None)
    dispatcher.exposed_communication_s = 100.0
    assert dispatcher.exposed_communication_s == 100.0
    dispatcher.close()


def test_simulated_waiting_is_what_the_clocks_say():
    observer = Clock()
    dispatcher = dispatcher_of(Acting(), Between(), observer=observer)
    dispatcher.run_exposed("label", lambda: None)
    assert dispatcher.exposed_communication_s == 40.0
    dispatcher.exposed_communication_s = 7.0
    observer.exposed_communication_s += 1
    assert dispatcher.exposed_communication_s == 8.0
    dispatcher.close()
