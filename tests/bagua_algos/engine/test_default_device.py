"""Scripts that make every tensor on a GPU (`torch.set_default_device`), around a model on the CPU:
what stays on the host says so. The meta device takes the place of a GPU here.
"""

import pytest
import torch
from torch import nn

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script.elementwise import check_elementwise
from bagua_algos.engine.script.own_storage import find_overlap
from bagua_algos.fused.fuse import fuse_in
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.cases import NODES
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_WORKERS = 4


@pytest.mark.parametrize("name", ROWS)
def test_an_algorithm_trains_as_with_the_default_device(name):
    weights = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        algorithm, model = ROWS[name](), StackedModel(nn.Linear(6, 5), NUM_WORKERS)
        optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
        x = torch.randn(NUM_WORKERS, 8, 6)
        with torch.device(device):
            workers = StackedCommunicator(NUM_WORKERS, nodes=NODES[NUM_WORKERS])
            engine = Engine(
                *(model, optimizer, algorithm, workers), fuse=fuse_in, find_unused_parameters=True
            )
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            engine.pause()
            with engine.consensus():
                pass
        engine.close()
        weights.append(model.module.weight.detach())
    assert torch.equal(*weights)


def test_checks_of_optimizers_and_memory_do_not_mind_either():
    model = nn.Linear(6, 5)
    x = torch.arange(12.0).view(3, 4)
    with torch.device("meta"):
        check_elementwise(torch.optim.AdamW(model.parameters()), num_held=3)
        assert find_overlap([x[:, 0]], [x[:, 1]]) is None
        assert find_overlap([x[:, 0]], [x[:, ::2]]) is not None
