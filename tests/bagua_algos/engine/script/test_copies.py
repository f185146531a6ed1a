"""Copies of a distributed model are plain, and stand where the model itself cannot."""

import copy

import pytest
import torch

import bagua_algos
from bagua_algos import AllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.engine.test_engine import engine_of, layers


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_takes_a_copy():
    model = layers(3, 4)
    engine, _ = engine_of(model, AllReduce())
    with pytest.raises(ValueError, match=r"give it copy.deepcopy\(model\), which is plain"):
        torch.jit.script(model)
    x = torch.ones(2, 3)
    assert torch.equal(torch.jit.script(copy.deepcopy(model))(x), model(x))
    engine.close()


def test_a_copys_no_sync_does_nothing():
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), StackedCommunicator(1))
    alike = copy.deepcopy(model)
    with alike.no_sync():
        model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with model.no_sync():
        model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"all accumulated within no_sync\(\)"):
        optimizer.step()
    bagua_algos.release(model)
