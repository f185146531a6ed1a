"""The clock of the background of a real worker, while training stands still."""

import pytest
import torch

from bagua_algos import AsyncModelAverage
from bagua_algos.engine import background as module
from bagua_algos.engine.background import Background
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.algorithms.test_async_model_average import Alone

CPU = torch.device("cpu")


class Surroundings:
    """A lane, the workers, and the host's clock, set by hand: the job that is begun ends at
    `ends_s`, on the host's clock.
    """

    ranks, world_size, departures, failure = (0,), 3, None, None

    def __init__(self):
        self.communicator = self
        self.now_s, self.ends_s, self.begun_by_others = 0.0, float("-inf"), [0, 0]

    def clock(self):
        return self.now_s

    @property
    def is_idle(self):
        return self.now_s >= self.ends_s

    def submit(self, label, job):
        pass

    def wait(self):
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
