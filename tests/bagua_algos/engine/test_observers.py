"""Who hears of a step: an observer of its moments, and a listener between two of them."""

import pytest
import torch

from bagua_algos import Algorithm, AllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.test_engine import ONE_BYTE, Recording, engine_of, layers


class Observer:
    """What it hears, in order: of jobs, that they were submitted and that they are done."""

    def __init__(self):
        self.heard = []

    def on_submit(self, moment, bucket):
        self.heard.append(f"submit {moment} {bucket}")

    def on_job(self, moment, bucket):
        pass

    def on_job_end(self, moment, bucket):
        self.heard.append(f"done {moment} {bucket}")

    def __getattr__(self, moment):
        return lambda: self.heard.append(moment)


class Listener:
    def __init__(self):
        self.heard, self.state = [], 5

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state_dict):
        self.state = state_dict["state"]

    def __getattr__(self, moment):
        return lambda: self.heard.append(moment)


def train(model, optimizer, x=None):
    model(torch.ones(2, 3) if x is None else x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_an_observer_hears_of_a_step_in_its_order():
    observer, model = Observer(), layers(3, 4)
    engine, optimizer = engine_of(model, Recording(), step_observer=observer)
    observer.heard.clear()
    with engine.no_sync():
        model(torch.ones(2, 3)).sum().backward()
    train(model, optimizer)
    # A lane is done with its jobs at any time before training goes on without them.
    done = [words for words in observer.heard if words.startswith("done")]
    assert [words for words in observer.heard if words not in done] == [
        *("on_forward", "submit on_forward None", "on_forward_end"),
        *("on_forward", "submit on_forward None", "on_forward_end"),
        *("submit on_bucket_ready 0", "on_backward_end", "submit on_backward_end None"),
        *("on_synchronized", "submit on_step_end None", "on_step_end"),
    ]
    of_backward = ["done on_bucket_ready 0", "done on_backward_end None"]
    assert done == [*["done on_forward None"] * 2, *of_backward, "done on_step_end None"]
    assert observer.heard.index(of_backward[-1]) < observer.heard.index("on_synchronized")
    assert observer.heard[-2:] == ["done on_step_end None", "on_step_end"]
    engine.close()
    observer.heard.clear()
    train(model, optimizer)
    assert observer.heard == []


def test_a_forward_without_examples_is_one_too():
    observer, listener, model = Observer(), Listener(), layers(3, 4)
    engine, optimizer = engine_of(model, Recording(), step_observer=observer)
    engine.listener = listener
    observer.heard.clear()
    engine.empty_backward()
    optimizer.step()
    names = [words.split()[0] for words in observer.heard if words.startswith("on_")]
    assert names == ["on_forward", "on_backward_end", "on_synchronized", "on_step_end"]
    assert listener.heard == ["forward_begins", "step_ended"]
    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())
    engine.close()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_overflows_ends_with_its_backward_pass_and_the_next_is_one(fused):
    """An optimizer with fused=True steps, and does nothing."""
    observer, model, scaler = Observer(), layers(3, 4), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    workers = StackedCommunicator(1)
    Engine(model, optimizer, Recording(), workers, grad_scaler=scaler, step_observer=observer)
    observer.heard.clear()
    scaler.scale(model(torch.full((2, 3), torch.inf)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert [words for words in observer.heard if "on_forward None" not in words] == [
        *("on_forward", "on_forward_end", "on_backward_end", "on_synchronized", "on_step_end")
    ]
    optimizer.zero_grad()
    observer.heard.clear()
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.step(optimizer)
    assert [words for words in observer.heard if not words.startswith("done")] == [
        *("on_forward", "submit on_forward None", "on_forward_end"),
        *("submit on_bucket_ready 0", "on_backward_end", "submit on_backward_end None"),
        *("on_synchronized", "submit on_step_end None", "on_step_end"),
    ]


def test_a_step_without_an_observer_or_a_listener_is_a_step():
    model, algorithm = layers(3, 4), Recording()
    _, optimizer = engine_of(model, algorithm)
    train(model, optimizer)
    assert algorithm.moments == ["forward", "bucket 0", "backward end", "step 0 end"]


def test_a_listener_hears_of_steps_and_of_what_stands_between_them():
    listener, model = Listener(), layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    engine.listener = listener
    train(model, optimizer)
    assert listener.heard == ["forward_begins", "step_ended"]
    engine.pause()
    engine.stand_still()
    assert listener.heard[2:] == ["paused", "paused"]
    engine.close()


def test_a_listeners_state_is_part_of_the_engines():
    engines = [engine_of(layers(3, 4), AllReduce())[0] for _ in range(2)]
    assert "listener" not in engines[0].state_dict()
    for engine in engines:
        engine.listener = Listener()
    engines[0].listener.state = 9
    engines[1].load_state_dict(engines[0].state_dict())
    assert engines[1].listener.state == 9
    engines[0].listener = None
    engines[1].load_state_dict(engines[0].state_dict())
    assert engines[1].listener.state == 9, "a state without one changes nothing"
    for engine in engines:
        engine.close()


def test_a_listeners_state_of_other_workers_is_left():
    """What it has found is of theirs: how they communicate, and in which order they add up."""
    one, _ = engine_of(layers(3, 4), AllReduce())
    two, _ = engine_of(StackedModel(layers(3, 4), 2), AllReduce(), 2)
    one.listener, two.listener = Listener(), Listener()
    one.listener.state = 9
    two.load_state_dict(one.state_dict())
    assert two.listener.state == 5
    for engine in (one, two):
        engine.close()


def test_no_sync_ends_with_its_block_whatever_happens_in_it_and_may_be_nested():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    with engine.no_sync():
        with pytest.raises(ArithmeticError), engine.no_sync():
            raise ArithmeticError
        model(torch.ones(2, 3)).sum().backward()
    train(model, optimizer)
    step = ["forward", "bucket 0", "backward end", "step 0 end"]
    assert algorithm.moments == ["forward", *step]
    engine.close()


def test_steps_that_others_have_taken_are_counted():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    engine.skip_to(5)
    train(model, optimizer)
    assert algorithm.moments[-1] == "step 5 end"
    assert engine.context.step == 6
    engine.close()


def test_what_cannot_start_closes_its_lane():
    """Which would wait for jobs until the process ends."""
    closed = []

    class Watched(StackedCommunicator):
        def close(self):
            closed.append(self)

    class Refused(Algorithm):
        def init(self, context):
            raise ValueError("not by this one")

    model, workers = layers(3, 4), Watched(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="not by this one"):
        Engine(model, optimizer, Refused(), workers, bucket_bytes=ONE_BYTE)
    assert closed == [workers]
