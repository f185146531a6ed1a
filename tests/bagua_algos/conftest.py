from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bagua_algos import ProcessGroupCommunicator
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.connections.groups import forget_left
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.cases import CASES, NODES, WORLD_SIZE, Tensors
from tests.bagua_algos.engine.test_engine import layers
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


@pytest.fixture(scope="module")
def one_worker() -> Iterator[None]:
    """torch's default group, of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    forget_left()
    dist.destroy_process_group()


class Sharding(NamedTuple):
    """Into one shard, on this process alone."""

    shard: Callable[[nn.Module], nn.Module]
    workers: Communicator
    """Those that hold the same shard."""


@pytest.fixture
def sharding(one_worker) -> Sharding:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    workers = ProcessGroupCommunicator(mesh["replicate"].get_group())
    return Sharding(partial(fully_shard, mesh=mesh["shard"]), workers)


@pytest.fixture
def sharded(sharding) -> tuple[nn.Module, Communicator]:
    """A model in one shard, and the workers that hold it."""
    return sharding.shard(layers(3, 4)), sharding.workers
