import pytest
import torch

from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.cases import CASES, NODES, WORLD_SIZE, Tensors
from tests.bagua_algos.gloo import run_program_once

# As the real workers: sums in one order.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real(tmp_path_factory) -> dict[str, Tensors]:
    """Every case as 4 gloo workers did it, their rows stacked: what `simulated` is, from real
    messages.
    """
    workers = run_program_once(tmp_path_factory, "tests.bagua_algos.real_workers", WORLD_SIZE)
    return {
        name: {key: torch.cat([w[name][key] for w in workers]) for key in workers[0][name]}
        for name in [*CASES, "torch_ddp", "hosts", "shared_memory"]
    }


class Simulated(dict[str, Tensors]):
    """Every case on 4 simulated workers, once it is asked for: another process has other tests."""

    def __missing__(self, name: str) -> Tensors:
        self[name] = CASES[name](StackedCommunicator(WORLD_SIZE, nodes=NODES[WORLD_SIZE]))
        return self[name]


@pytest.fixture(scope="session")
def simulated() -> Simulated:
    return Simulated()
