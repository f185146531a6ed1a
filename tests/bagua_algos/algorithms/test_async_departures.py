"""What a worker of asynchronous averaging makes of others that have ended, and of its own end."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from bagua_algos import AsyncModelAverage, CommunicationError
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.threads.at_exit import WORD_S
from bagua_algos.communication.threads.job_thread import LEAVE_S
from bagua_algos.engine.algorithm import Context

TRUE, FALSE = torch.tensor([True]), torch.tensor([False])


class Departures:
    """Of the others, as the test says; what this worker asked and told."""

    def __init__(self, left=None):
        self.left, self.known_for_s, self.waits_s, self.told = left or {}, 0.0, [], []

    def known(self, *, within_s=0.0):
        self.waits_s.append(within_s)
        return self.left

    def lately_known(self):
        return self.left

    def leave(self, num_steps):
        self.told.append(num_steps)

    def wait_for_the_others(self, until_s):
        self.told.append(f"waited until {until_s}")


class Background:
    """Whose rounds are done when the test says so."""

    def __init__(self, departures=None, num_steps=0):
        self.departures, self.num_steps = departures, num_steps
        self.failure, self.is_given_up, self.done, self.begun = None, False, TRUE, 0
        self.communicator = StackedCommunicator(1)

    def at_end(self, before, after):
        self.before, self.after = before, after

    def done_w(self):
        return self.done

    def now_w(self):
        return torch.zeros(1, dtype=torch.float64)

    def begin(self, workers, label, job):
        self.begun += 1

    def wait(self):
        pass


def context_of(algorithm, background, *, step=0, state=None):
    context = Context(
        buckets=[SimpleNamespace(weights=torch.zeros(1, 2))],  # pyright: ignore
        communicator=background.communicator,
        optimizer=None,  # pyright: ignore
        background=background,
        step=step,
    )
    made = algorithm.init(context) if state is None else state
    return Context(**(vars(context) | {"state": made}))


@pytest.fixture
def algorithm():
    return AsyncModelAverage(interval_ms=0)


def silently(act, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        act(*arguments)


def test_who_ends_leaves_word_of_its_steps_and_those_of_as_many_are_no_surprise(algorithm):
    background = Background(Departures({1: 7, 2: 7}), num_steps=7)
    context_of(algorithm, background)
    silently(background.before)
    silently(background.after, 12.5)
    assert background.departures.told == [7, "waited until 12.5"]
    assert not background.is_given_up and max(background.departures.waits_s) == 0


@pytest.mark.parametrize("steps", [6, 8])
def test_who_ends_after_other_steps_than_another_is_warned_of_it_once(algorithm, steps):
    background = Background(Departures({1: steps, 2: 7}), num_steps=7)
    context_of(algorithm, background)
    with pytest.warns(UserWarning, match=f"alone: worker 1 has ended after {steps} steps; workers"):
        background.before()
    assert background.is_given_up
    silently(background.before)
    silently(background.after, 0.0)


@pytest.mark.parametrize(
    ("steps", "words"), [(6, "worker 1 has ended after 6 steps;"), (None, "worker 1 has ended;")]
)
def test_who_was_left_before_is_warned_at_the_end(algorithm, steps, words):
    background = Background(Departures({1: steps, 2: 7, 3: 8}), num_steps=7)
    context_of(algorithm, background)
    with pytest.warns(UserWarning, match=f"alone: {words} workers that are to"):
        background.after(0.0)
    assert background.is_given_up
    silently(background.after, 0.0)


@pytest.mark.parametrize(
    ("left", "words"), [({}, "worker 2 is gone"), ({2: 9}, "worker 2 has ended after 9 steps; wor")]
)
def test_a_failure_is_told_at_the_end_with_the_word_that_may_come_yet(algorithm, left, words):
    background = Background(Departures(left), num_steps=7)
    context_of(algorithm, background)
    background.failure = RuntimeError("worker 2 is gone")
    with pytest.warns(UserWarning, match=f"alone: {words}"):
        background.after(0.0)
    assert background.departures.waits_s == [WORD_S]


def test_where_all_workers_are_held_there_is_nobody_to_tell(algorithm):
    background = Background()
    context_of(algorithm, background)
    background.failure = RuntimeError("it broke")
    silently(background.before)
    silently(background.after, 0.0)


def test_a_round_in_flight_may_be_completed_before_the_end_of_another_counts(algorithm):
    background = Background(departures := Departures())
    context = context_of(algorithm, background)
    background.done = FALSE
    for _ in range(2):  # the clock begins at the first, and no time has to pass
        silently(algorithm.on_step_end, context)
    assert context.state.in_flight.all() and background.begun == 1
    departures.left, departures.known_for_s = {1: 3}, LEAVE_S + WORD_S
    silently(algorithm.on_step_end, context)
    assert not background.is_given_up
    departures.known_for_s += 0.1
    with pytest.warns(UserWarning, match="worker 1 has ended after 3 steps"):
        algorithm.on_step_end(context)
    assert background.is_given_up and context.state.in_flight.all()
    silently(algorithm.on_step_end, context)
    assert background.begun == 1


def test_without_a_round_in_flight_the_end_of_another_counts_at_once(algorithm):
    background = Background(departures := Departures())
    context = context_of(algorithm, background)
    silently(algorithm.on_step_end, context)
    assert context.state.in_flight.all()
    departures.left = {1: None}
    with pytest.warns(UserWarning, match="averaging has ended.*worker 1 has ended; workers"):
        algorithm.on_step_end(context)  # takes up the last round, and begins no other
    assert not context.state.in_flight.any() and background.begun == 1


def test_steps_are_counted_also_in_warm_up_and_after_the_end_of_averaging():
    algorithm = AsyncModelAverage(interval_ms=0, warmup_steps=4)
    background = Background()
    state = context_of(algorithm, background).state
    for step, begun in ((2, 0), (3, 0), (4, 1)):
        algorithm.on_step_end(context_of(algorithm, background, step=step, state=state))
        assert (background.num_steps, background.begun) == (step + 1, begun)
    background.is_given_up = True
    algorithm.on_step_end(context_of(algorithm, background, step=5, state=state))
    assert (background.num_steps, background.begun) == (6, 1)


def test_a_failed_round_waits_for_the_word_of_who_has_ended(algorithm):
    background = Background(departures := Departures({2: 9}))
    context = context_of(algorithm, background)
    background.failure = RuntimeError("connection closed")
    sentence = "worker 2 has ended after 9 steps; connection closed; workers that"
    with pytest.warns(UserWarning, match=sentence):
        algorithm.on_step_end(context)
    assert departures.waits_s == [WORD_S]


def test_a_pause_after_the_end_of_averaging_is_an_error(algorithm):
    background = Background(Departures({2: 9}))
    context = context_of(algorithm, background)
    background.is_given_up = True
    with pytest.raises(
        CommunicationError, match=r"averaging has ended.*worker 2 has ended after 9"
    ):
        algorithm.on_pause(context)
    background.failure = CommunicationError("connection closed")
    with pytest.raises(CommunicationError, match=r"^connection closed$"):
        algorithm.on_pause(context)


@pytest.mark.parametrize(
    ("left", "sentence"),
    [({2: 9}, "^worker 2 has ended after 9 steps; no answer$"), ({}, "^no answer$")],
)
def test_a_pause_that_others_do_not_come_to_names_who_has_ended(algorithm, left, sentence):
    class Broken(StackedCommunicator):
        def all_gather(self, x_w):
            raise CommunicationError("no answer")

    background = Background(departures := Departures(left))
    background.communicator = Broken(1)
    with pytest.raises(CommunicationError, match=sentence):
        algorithm.on_pause(context_of(algorithm, background))
    assert departures.waits_s == [WORD_S]
