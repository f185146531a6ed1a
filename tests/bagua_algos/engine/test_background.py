"""When a job of the background runs and is done: by the clock of a real worker, which stands still
while training does, and by simulated clocks.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bagua_algos import AsyncModelAverage
from bagua_algos.engine import background as module
from bagua_algos.engine.algorithm import Context
from bagua_algos.engine.background import Background
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.algorithms.test_async_model_average import Alone

CPU = torch.device("cpu")


class Surroundings:
    """A lane, the workers, and the host's clock, set by hand: the job that is begun ends at
    `ends_s`, on the host's clock. `log` has what happened on the lane and in the process.
    """

    departures, failure = None, None

    def __init__(self, *, ranks=(0,), world_size=3):
        self.communicator, self.ranks, self.world_size = self, ranks, world_size
        self.now_s, self.ends_s, self.begun_by_others = 0.0, float("-inf"), [0, 0]
        self.log = []

    def clock(self):
        return self.now_s

    @property
    def is_idle(self):
        return self.now_s >= self.ends_s

    def at_end(self, before, after):
        self.before = before

    def submit(self, label, job):
        self.log.append(label)

    def wait(self):
        self.log.append("waited")
        self.now_s = max(self.now_s, self.ends_s)

    def all_gather(self, x_w):
        return torch.tensor([[x_w.flatten().tolist() + self.begun_by_others]])

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def around(monkeypatch):
    around = Surroundings()
    monkeypatch.setattr(module.time, "sleep", around.sleep)
    return around


def begin(background, around, *, at_s, ends_s):
    around.now_s = at_s
    background.begin(torch.tensor([True]), "a round", lambda: None)
    around.ends_s = ends_s


def evaluate(background, around, *, at_s, for_s):
    around.now_s = at_s
    background.stand_still(around, CPU)
    around.now_s = at_s + for_s
    background.start_clock()


def test_a_round_that_all_have_begun_takes_as_long_as_without_an_evaluation(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    begin(background, around, at_s=10, ends_s=14)  # on the training clock, too
    evaluate(background, around, at_s=11, for_s=100)
    assert background.now_w().item() == pytest.approx(11)
    assert not background.done_w()
    around.now_s = 112  # the clock is at 12
    evaluate(background, around, at_s=112, for_s=50)
    around.now_s += 1.9
    assert background.now_w().item() == pytest.approx(13.9)
    assert not background.done_w()
    around.now_s += 0.2
    assert background.done_w()


def test_the_evaluation_begins_when_such_a_round_has_left_the_network(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    begin(background, around, at_s=10, ends_s=14)
    around.now_s = 11
    background.stand_still(around, CPU)
    assert around.now_s == pytest.approx(14, abs=0.01)
    assert background.now_w().item() == pytest.approx(11)


def test_a_round_that_some_have_not_begun_is_not_waited_for(around):
    background = Background(around)
    around.begun_by_others = [1, 0]
    begin(background, around, at_s=10, ends_s=150)
    evaluate(background, around, at_s=11, for_s=100)
    assert background.now_w().item() == pytest.approx(11)
    around.now_s = 149
    assert not background.done_w()
    around.now_s = 150
    assert background.done_w()


def test_a_round_that_was_done_before_the_evaluation_stays_done(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    begin(background, around, at_s=10, ends_s=10.5)
    evaluate(background, around, at_s=11, for_s=100)
    assert background.done_w()


def test_who_waits_for_the_round_waits_until_the_clock_is_there(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    begin(background, around, at_s=10, ends_s=14)
    evaluate(background, around, at_s=11, for_s=100)
    background.wait()
    assert background.now_w().item() == pytest.approx(14, abs=0.01)


def test_what_ended_the_lane_is_raised(around):
    around.failure = RuntimeError("worker 2 is gone")
    with pytest.raises(RuntimeError, match="worker 2 is gone"):
        Background(around).stand_still(around, CPU)


def test_a_round_begun_between_two_evaluations_takes_as_long_as_without_them(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    evaluate(background, around, at_s=5, for_s=100)
    begin(background, around, at_s=110, ends_s=114)  # from 10 to 14 on the training clock
    evaluate(background, around, at_s=111, for_s=50)
    around.now_s = 163.9
    assert not background.done_w()
    around.now_s = 164.1
    assert background.done_w()


def test_who_waits_for_no_round_waits_no_time(around):
    background = Background(around)
    background.wait()
    assert around.now_s == 0
    begin(background, around, at_s=10, ends_s=11)
    around.now_s = 20
    background.wait()
    assert around.now_s == 20


def test_a_round_that_was_ended_in_an_evaluation_holds_up_no_later_one(around):
    background = Background(around)
    around.begun_by_others = [1, 1]
    begin(background, around, at_s=10, ends_s=14)
    around.now_s = 11
    background.stand_still(around, CPU)
    background.wait()  # such as for a checkpoint
    background.start_clock()
    begin(background, around, at_s=15, ends_s=16)  # at 12 on the training clock
    around.now_s = 16
    assert background.done_w()


def test_a_round_begins_once_all_workers_held_here_have_begun_it():
    around: Any = Surroundings(ranks=(0, 1), world_size=2)
    background = Background(around)
    first, second = torch.tensor([True, False]), torch.tensor([False, True])
    background.begin(first, "a round", lambda: None)
    assert around.log == [] and not background.done_w()[0]
    around.log.clear()
    background.begin(second, "a round", lambda: None)
    assert around.log == ["a round"]
    assert background.done_w().all()


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_without_others_elsewhere_a_round_is_done_when_anybody_asks(ranks, monkeypatch):
    around: Any = Surroundings(ranks=ranks, world_size=len(ranks))
    monkeypatch.setattr(module.time, "sleep", around.sleep)
    around.begun_by_others = []
    background = Background(around)
    around.now_s = 10
    background.begin(torch.ones(len(ranks), dtype=torch.bool), "a round", lambda: None)
    around.ends_s = 14
    evaluate(background, around, at_s=11, for_s=100)
    assert background.done_w().all()
    begin(background, around, at_s=120, ends_s=125)
    assert background.done_w().all() and around.now_s == 125


def test_who_ends_before_its_first_step_leaves_word_of_none(around):
    told = []
    around.departures = SimpleNamespace(leave=told.append, known=lambda **_: {})
    background = Background(around)
    context = Context(buckets=[], communicator=around, optimizer=None, background=background)  # pyright: ignore
    AsyncModelAverage().init(context)
    around.before()
    assert told == [0]


class Clocks:
    """Simulated ones, of two workers: the second is not yet at the time at which a job is over."""

    exposed_communication_s = 0.0

    def __init__(self, log):
        self.log = log

    def now_w(self):
        return torch.tensor([7.0, 3.0], dtype=torch.float64)

    @contextmanager
    def background(self):
        self.log.append("a job is next")
        yield
        self.log.append("it has ended")

    def background_done_w(self):
        return torch.tensor([True, False])

    def background_wait(self):
        self.log.append("all clocks are there")


@pytest.fixture
def simulated():
    around: Any = Surroundings(ranks=(0, 1), world_size=2)
    return Background(around, Clocks(around.log)), around.log


def test_simulated_clocks_hear_of_all_that_a_job_does(simulated):
    background, log = simulated
    background.begin(torch.tensor([True, True]), "a round", lambda: None)
    assert log == ["a job is next", "a round", "waited", "it has ended"]


def test_a_job_is_done_when_a_worker_that_has_begun_it_says_so_by_its_simulated_clock(simulated):
    background, _ = simulated
    assert background.now_w().tolist() == [7, 3]
    background.begin(torch.tensor([True, True]), "a round", lambda: None)
    assert background.done_w().tolist() == [True, False]
    background.begin(torch.tensor([True, False]), "the next round", lambda: None)
    assert background.done_w().tolist() == [False, False]


def test_simulated_workers_wait_by_their_clocks(simulated):
    background, log = simulated
    background.wait()
    assert log == ["waited", "all clocks are there"]


@pytest.mark.parametrize("stop", [Engine.pause, Engine.stand_still])
def test_the_clock_of_training_stands_still_from_a_stop_to_the_next_forward(stop):
    training = Alone(AsyncModelAverage(interval_ms=1000))
    background = training.engine.context.background
    assert background is not None
    training.step(at_s=10)
    training.now_s = 12
    stop(training.engine)
    training.now_s = 100
    assert background.now_w().tolist() == [12] * 3
    training.step(at_s=103, began_s=100)
    assert background.now_w().tolist() == [15] * 3
    training.engine.close()


def test_a_stop_raises_what_has_ended_the_background():
    training = Alone(AsyncModelAverage(interval_ms=0))
    training.step(at_s=1)
    background = training.engine.context.background
    assert background is not None

    def fail():
        raise RuntimeError("worker 2 is gone")

    background.begin(torch.tensor([True] * 3), "a round", fail)
    with pytest.raises(RuntimeError, match="worker 2 is gone"):
        background.wait()
    with pytest.raises(RuntimeError, match="worker 2 is gone"):
        training.engine.stand_still()
    training.engine.close()
