import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from bagua_algos import AsyncModelAverage
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel

LEARNING_RATE = 0.1
NUM_WORKERS = 3


class Alone:
    """Workers that pull one weight each towards a target of their own, at a clock set by hand."""

    def __init__(self, algorithm):
        self.now_s = 0.0
        self.communicator = StackedCommunicator(NUM_WORKERS, clock=lambda: self.now_s)
        self.model = StackedModel(nn.Linear(1, 1, bias=False), NUM_WORKERS)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.engine = Engine(self.model, optimizer, algorithm, self.communicator)
        self.optimizer = optimizer
        self.targets_w = torch.arange(NUM_WORKERS).float()

    @property
    def weights_w(self):
        return next(self.model.parameters()).detach().flatten().clone()

    def step(self, at_s, began_s=None):
        self.now_s = at_s if began_s is None else began_s
        self.optimizer.zero_grad()
        outputs_w = self.model(torch.ones(NUM_WORKERS, 1, 1)).flatten()
        ((outputs_w - self.targets_w) ** 2 / 2).sum().backward()
        self.now_s = at_s
        self.optimizer.step()


def local_step(x_w, targets_w):
    return x_w - LEARNING_RATE * (x_w - targets_w)


def test_a_correction_lands_one_step_after_its_snapshot_and_keeps_what_came_between():
    training = Alone(AsyncModelAverage(interval_ms=0))
    x_w, snapshot_w = training.weights_w, None
    for step in range(5):
        training.step(at_s=step)
        x_w = local_step(x_w, training.targets_w)
        if snapshot_w is not None:
            x_w = x_w + snapshot_w.mean() - snapshot_w
        snapshot_w = x_w
        torch.testing.assert_close(training.weights_w, x_w)
    assert training.engine.context.state.num_rounds.tolist() == [5] * NUM_WORKERS
    assert len(training.weights_w.unique()) == NUM_WORKERS
    assert not training.engine.algorithm.workers_agree


def test_an_average_is_taken_up_by_those_alone_at_whose_time_it_is_done(monkeypatch):
    training = Alone(AsyncModelAverage(interval_ms=0))
    training.step(at_s=0)
    snapshot_w, background = training.weights_w, training.engine.context.background
    background.wait()
    monkeypatch.setattr(background, "done_w", lambda: torch.tensor([True, False, False]))
    training.step(at_s=1)
    expected_w = local_step(snapshot_w, training.targets_w)
    expected_w[0] += snapshot_w.mean() - snapshot_w[0]
    torch.testing.assert_close(training.weights_w, expected_w)


def test_workers_meet_in_backward_during_warm_up_alone():
    algorithm = AsyncModelAverage(warmup_steps=2)
    assert [algorithm.meets_in_backward(step) for step in range(4)] == [True, True, False, False]


def test_without_nodes_hierarchical_rounds_are_refused_before_any_step():
    with pytest.raises(ValueError, match=r"^hierarchical=True needs to know which workers share a"):
        Alone(AsyncModelAverage(hierarchical=True))


def test_rounds_begin_an_interval_apart_counted_from_the_first_step():
    training = Alone(AsyncModelAverage(interval_ms=1000))
    counts = []
    for at_s in (10.0, 10.9, 11.0, 11.5, 11.9, 12.0, 14.0, 14.1):
        training.step(at_s)
        counts.append(training.engine.context.state.num_rounds[0].item())
    assert counts == [0, 0, 1, 1, 1, 2, 3, 3]


def test_a_pause_takes_up_the_round_in_flight_and_is_idempotent():
    training = Alone(AsyncModelAverage(interval_ms=0))
    training.step(at_s=0)
    x_w = training.weights_w
    training.engine.pause()
    torch.testing.assert_close(training.weights_w, x_w.mean().expand(NUM_WORKERS))
    training.engine.pause()
    torch.testing.assert_close(training.weights_w, x_w.mean().expand(NUM_WORKERS))
    assert not training.engine.context.state.in_flight.any()


def test_pauses_neither_put_off_the_next_round_nor_bring_it_nearer():
    training = Alone(AsyncModelAverage(interval_ms=1000))
    began_s = 0.0
    for took_s, rounds in ((0.0, 0), (0.5, 0), (0.25, 0), (0.25, 1), (0.5, 1), (0.5, 2)):
        training.step(began_s + took_s, began_s)
        training.engine.pause()
        training.now_s += 0.5  # an evaluation
        training.engine.pause()  # as does every use of the workers' common model
        assert training.engine.context.state.num_rounds[0] == rounds
        began_s = training.now_s + 10


def test_a_checkpoint_of_a_clock_that_was_ahead_does_not_stop_the_rounds():
    before, after = (Alone(AsyncModelAverage(interval_ms=1000)) for _ in range(2))
    for at_s in (1e6, 1e6 + 1):
        before.step(at_s)
    before.engine.pause()
    after.engine.load_state_dict(before.engine.state_dict())
    for at_s, rounds in ((0.0, 1), (0.9, 1), (1.0, 2)):
        after.step(at_s)
        assert after.engine.context.state.num_rounds[0] == rounds


def test_at_a_pause_those_behind_begin_the_rounds_that_the_furthest_has_begun():
    training = Alone(AsyncModelAverage(interval_ms=1e9))
    training.step(at_s=0)
    x_w = training.weights_w
    state, engine = training.engine.context.state, training.engine
    with torch.no_grad():
        engine.algorithm._begin(engine.context, torch.tensor([True, False, False]))
    assert state.num_rounds.tolist() == [1, 0, 0]
    training.engine.pause()
    assert state.num_rounds.tolist() == [1, 1, 1]
    torch.testing.assert_close(training.weights_w, x_w.mean().expand(NUM_WORKERS))


def test_warm_up_is_all_reduce():
    training = Alone(AsyncModelAverage(interval_ms=0, warmup_steps=3))
    x_w = training.weights_w
    for step in range(3):
        training.step(at_s=step)
        x_w = local_step(x_w, training.targets_w.mean())
        torch.testing.assert_close(training.weights_w, x_w)
    assert training.engine.context.state.num_rounds.sum() == 0


class FailsWhenAsked:
    """A background whose round fails between two questions."""

    failure = departures = None
    is_given_up = False

    def start_clock(self):
        pass

    def done_w(self):
        self.failure = RuntimeError("worker 2 is gone")
        return torch.ones(NUM_WORKERS, dtype=torch.bool)


def test_a_round_that_fails_meanwhile_is_not_taken_up():
    training = Alone(AsyncModelAverage(interval_ms=0))
    training.step(at_s=0)
    assert training.engine.context.state.in_flight.all()
    training.engine.context.background.wait()
    training.engine.context = replace(training.engine.context, background=FailsWhenAsked())
    x_w = training.weights_w
    with pytest.warns(UserWarning, match="each worker trains on alone: worker 2 is gone"):
        training.step(at_s=1)
    torch.testing.assert_close(training.weights_w, local_step(x_w, training.targets_w))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interval_ms": -1}, "interval_ms must be at least 0 and finite, got -1"),
        ({"interval_ms": math.inf}, "got inf"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number of at least 0, got -1"),
    ],
)
def test_numbers_out_of_range(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        AsyncModelAverage(**options)
