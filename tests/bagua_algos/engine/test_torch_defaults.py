"""Scripts that change what torch makes by default, around a float32 model on the CPU: every tensor
on a GPU (`torch.set_default_device`; the meta device takes its place here), or numbers of another
type (`torch.set_default_dtype`). What does not follow from the model says what it is.
"""

from contextlib import AbstractContextManager
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script.elementwise import check_elementwise
from bagua_algos.engine.script.own_storage import find_overlap
from bagua_algos.fused.fuse import fuse_in
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.cases import NODES
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer
from tests.torch_defaults import OTHER_DTYPES, default_dtype

NUM_WORKERS = 4


def trained(name: str, script: AbstractContextManager[object], num_steps: int) -> list[Tensor]:
    """The weights, and what the optimizer keeps of them, where the script's own part runs within
    `script`.
    """
    torch.manual_seed(0)
    model = StackedModel(nn.Linear(24, 16), NUM_WORKERS)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    x = torch.randn(NUM_WORKERS, 8, 24)
    with script:
        workers = StackedCommunicator(NUM_WORKERS, nodes=NODES[NUM_WORKERS])
        algorithm = ROWS[name]()
        engine = Engine(
            *(model, optimizer, algorithm, workers),
            fuse=partial(fuse_in, agree=False),
            find_unused_parameters=True,
        )
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        engine.pause()
        with engine.consensus():
            pass
        engine.close()
    kept = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return [*(p.detach() for p in model.parameters()), *kept]


@pytest.mark.parametrize("name", ROWS)
def test_an_algorithm_trains_as_with_the_default_device(name):
    on_cpu, within_meta = (trained(name, torch.device(device), 3) for device in ("cpu", "meta"))
    torch.testing.assert_close(within_meta[0], on_cpu[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ROWS)
def test_an_algorithm_trains_a_float32_model_as_with_the_default_type(name):
    """Beyond all warm-ups, so that everything has been compressed."""
    expected = trained(name, default_dtype(torch.float32), 12)
    for dtype in OTHER_DTYPES:
        found = trained(name, default_dtype(dtype), 12)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=str(dtype))


def test_checks_of_optimizers_and_memory_do_not_mind_either():
    model = nn.Linear(6, 5)
    x = torch.arange(12.0).view(3, 4)
    for script in (torch.device("meta"), *map(default_dtype, OTHER_DTYPES)):
        with script:
            check_elementwise(torch.optim.AdamW(model.parameters()), num_held=3)
            assert find_overlap([x[:, 0]], [x[:, 1]]) is None
            assert find_overlap([x[:, 0]], [x[:, ::2]]) is not None
