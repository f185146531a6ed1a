"""What the library takes an author's own algorithm for, where its class says nothing of itself."""

import threading
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from bagua_algos import Algorithm
from bagua_algos.autotune.scope import scope
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.algorithm import Context
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.engine.test_engine import engine_of, layers


@dataclass(frozen=True, kw_only=True)
class Silent(Algorithm):
    """Has a part of the gradients in its state, and acts at all moments of a step."""

    threads: list[threading.Thread] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)

    def init(self, context):
        return [torch.zeros_like(bucket.gradients) for bucket in context.buckets]

    def on_bucket_ready(self, context, bucket):
        context.state[bucket.index] += bucket.gradients
        self.threads.append(threading.current_thread())
        self.passes.append((context.step, context.backwards))


@dataclass(frozen=True, kw_only=True)
class AtStepEnd(Algorithm):
    """Needs nobody's gradients."""

    def on_step_end(self, context):
        pass


@dataclass(frozen=True, kw_only=True)
class Plain(Silent):
    only_averages: ClassVar[bool] = True  # pyright: ignore


class SharingMemory(LoopbackCommunicator):
    @property
    def shares_memory(self):
        return True


def test_its_parameters_stay_in_their_buckets():
    own = scope(Silent(), LoopbackCommunicator(3), {torch.float32})
    assert own.tunes_lanes and not own.tunes_buckets
    assert own.left_out == ("what Silent computes depends on buckets: they stay as they are",)


def test_its_state_of_other_buckets_is_refused():
    engine, _ = engine_of(layers(3, 4, 5), Silent(), bucket_bytes=1)
    other, _ = engine_of(layers(3, 4, 5), Silent())
    with pytest.raises(ValueError, match="of another layout of buckets"):
        other.load_state_dict(engine.state_dict())
    engine.close()
    other.close()


def test_a_script_may_load_weights_between_its_steps():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AtStepEnd())
    model.load_state_dict({name: x + 1 for name, x in model.state_dict().items()})
    optimizer.step()
    assert engine.context.step == 1
    engine.close()


@pytest.mark.parametrize(("algorithm", "is_beside"), [(Silent(), True), (Plain(), False)])
def test_its_last_bucket_too_is_beside_the_thread_of_training(algorithm, is_beside):
    """Where workers share memory, too; that thread may be in a mode of torch."""
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, SharingMemory(2))
    model(torch.ones(2, 3)).sum().backward()
    [thread] = algorithm.threads
    assert (thread is not threading.current_thread()) == is_beside
    engine.close()


def test_a_context_that_is_made_by_hand_is_of_the_first_backward_pass():
    """So a moment that is called by hand draws the random numbers that the engine's draws."""
    model, algorithm = layers(3, 4), Silent()
    engine, optimizer = engine_of(model, algorithm)
    model(torch.ones(2, 3)).sum().backward()
    [(step, backwards)] = algorithm.passes
    by_hand = Context(buckets=[], communicator=StackedCommunicator(1), optimizer=optimizer)
    assert (by_hand.step, by_hand.backwards) == (step, backwards)
    engine.close()
