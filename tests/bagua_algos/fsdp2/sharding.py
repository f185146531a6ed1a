"""How the cases shard a model: 4 processes, as rows of a mesh of 2 replicas and 2 shards."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.fsdp2.net import NODES, NUM_REPLICAS, NUM_SHARDS


@dataclass(frozen=True)
class Place:
    """A process among the 4."""

    mesh: DeviceMesh
    replicas: ProcessGroupCommunicator
    """The two that hold the same shard."""

    @classmethod
    def of(cls, communicator: ProcessGroupCommunicator) -> "Place":
        """The place of this process; `communicator` is of all of them."""
        sizes = (NUM_REPLICAS, NUM_SHARDS)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
        group = mesh["replicate"].get_group()
        assert communicator.world_size == NUM_REPLICAS * NUM_SHARDS
        return cls(mesh, ProcessGroupCommunicator(group, nodes=NODES))

    @property
    def replica(self) -> int:
        return self.mesh.get_local_rank("replicate")

    @property
    def shard(self) -> int:
        return self.mesh.get_local_rank("shard")


def shard(model: nn.Module, mesh: DeviceMesh, units: Iterable[str] = (), **options: Any) -> None:
    """Make each of the children `units` a unit, and the rest another one."""
    for name in units:
        fully_shard(model.get_submodule(name), mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The replica's weights as plain tensors; a collective call of its processes."""
    return {name: whole(p) for name, p in model.named_parameters()}


def whole(x: Tensor) -> Tensor:
    """A distributed tensor as a plain one."""
    with torch.no_grad():
        return (x.full_tensor() if isinstance(x, DTensor) else x).clone()
