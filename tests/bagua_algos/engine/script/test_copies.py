"""Copies of a distributed model are plain, and stand where the model itself cannot."""

import copy

import pytest
import torch

from bagua_algos import AllReduce
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
