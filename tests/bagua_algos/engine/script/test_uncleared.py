"""Who trains a layer alone and leaves the gradients of the others is warned where they harm."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bagua_algos import Algorithm, AllReduce, ByteGrad, CompressedAllReduce, PowerSGD, TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import SignScale
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.engine.test_engine import ONE_BYTE, layers

ENCODING = [
    ByteGrad(),
    CompressedAllReduce(compressor=SignScale(), error_feedback=True),
    TopK(ratio=0.5),
]
SAID = r"^'[01].weight' is in no optimizer .* the last step: .* {} encodes .* the model's zero_grad"


def name_of(algorithm: object) -> str:
    return type(algorithm).__name__


class OneLayer:
    """Two layers of three, `trained` of which the distributed optimizer has."""

    def __init__(self, algorithm: Algorithm, *, trained: int = 2, **options) -> None:
        self.model = layers(3, 4, 5, 6)
        self.optimizer = torch.optim.SGD(self.model[trained].parameters(), lr=0.1)
        workers = StackedCommunicator(1)
        self.engine = Engine(self.model, self.optimizer, algorithm, workers, **options)

    def backward(self, *, synchronizes: bool = True) -> None:
        with nullcontext() if synchronizes else self.engine.no_sync():
            self.model(torch.ones(2, 3)).square().mean().backward()

    def train(self, num_steps: int, clear=None) -> None:
        """By the optimizer's `zero_grad`, or `clear`."""
        for _ in range(num_steps):
            (clear or self.optimizer.zero_grad)()
            self.backward()
            self.optimizer.step()


def quiet():
    return warnings.catch_warnings(action="error")


@pytest.mark.parametrize("algorithm", ENCODING, ids=name_of)
def test_gradients_that_grow_beside_others_are_told_once(algorithm):
    own = OneLayer(algorithm)
    with quiet():
        own.train(1)
    with pytest.warns(UserWarning, match=SAID.format(name_of(algorithm))):
        own.train(1)
    with quiet():
        own.train(5)


def test_also_by_a_micro_batch_that_accumulates_alone():
    own = OneLayer(ByteGrad())
    with quiet():
        for synchronizes in (False, False, True):
            own.backward(synchronizes=synchronizes)
        own.optimizer.step()
    own.optimizer.zero_grad()
    with pytest.warns(UserWarning, match=SAID.format(name_of(ByteGrad()))):
        own.backward(synchronizes=False)


def test_also_on_a_worker_without_examples():
    own = OneLayer(ByteGrad())
    own.train(1)
    with pytest.warns(UserWarning, match=SAID.format(name_of(ByteGrad()))):
        own.engine.empty_backward()


@pytest.mark.parametrize("algorithm", [AllReduce(), PowerSGD(rank=1)], ids=name_of)
def test_who_encodes_nothing_together_is_not_told(algorithm):
    with quiet():
        OneLayer(algorithm).train(4)


def test_gradients_in_buckets_of_their_own_harm_nobody():
    with quiet():
        OneLayer(ByteGrad(), bucket_bytes=ONE_BYTE).train(4)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_who_clears_all_gradients_is_not_told(set_to_none):
    own = OneLayer(ByteGrad())
    with quiet():
        own.train(4, lambda: own.model.zero_grad(set_to_none=set_to_none))


def test_two_optimizers_may_clear_when_they_please():
    """The other one steps at every second step of the first."""
    own = OneLayer(ByteGrad())
    other = torch.optim.SGD([*own.model[0].parameters(), *own.model[1].parameters()], lr=0.1)
    with quiet():
        for _ in range(3):
            other.zero_grad()
            own.train(1)
            other.step()
            own.train(1)


def test_a_layer_that_the_optimizer_got_later_is_its_own():
    own = OneLayer(ByteGrad())
    with quiet():
        own.train(1)
        for layer in own.model[:2]:
            own.optimizer.add_param_group({"params": list(layer.parameters())})
        own.train(1, lambda: None)


def test_gradients_are_looked_at_in_the_first_steps_alone(monkeypatch):
    """They have to be read, and on a GPU waited for."""
    own = OneLayer(ByteGrad())
    looked = []
    monkeypatch.setattr(own.engine._uncleared, "_is_left", looked.append)
    own.train(30)
    assert 0 < len(looked) < 30


def test_an_overflow_that_has_ended_is_not_left():
    """An optimizer with fused=True steps, and does nothing."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    Engine(model, optimizer, ByteGrad(), StackedCommunicator(1), grad_scaler=scaler)
    with quiet():
        for factor in (torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(factor * model(torch.ones(2, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
