"""What sharded replicas must compute, in one process: simulated workers, and nothing of FSDP2.

`in_pieces` cuts weights into what each process holds and lets one ordinary engine for each shard
train the pieces: buckets are those of the sharded engine. `unsharded` trains the whole model.

Shape suffixes: w replicas, n elements of a piece.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.fsdp2.net import (
    NODES,
    NUM_REPLICAS,
    NUM_SHARDS,
    NUM_STEPS,
    SHARDED_ROWS,
    UNITS,
    Net,
    batch,
    make_two_groups,
)

Weights = dict[str, Tensor]


def piece(parameter: Tensor, shard: int) -> Tensor:
    """The rows of a parameter that processes of `shard` hold: FSDP2 cuts like `torch.chunk`."""
    chunks = parameter.detach().chunk(NUM_SHARDS)
    return chunks[shard] if shard < len(chunks) else parameter.detach()[:0]


def parameters_of(net: nn.Module, unit: str) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a unit, by their names."""
    layers = [(layer, net.get_submodule(layer)) for layer in UNITS[unit]]
    return [(f"{layer}.{name}", p) for layer, own in layers for name, p in own.named_parameters()]


class Pieces(nn.Module):
    """What processes of one shard hold of each unit, `[w, n]`: one parameter a unit, so that with
    the smallest buckets there is one bucket a unit. The engine begins with the last.
    """

    def __init__(self, net: nn.Module, shard: int) -> None:
        super().__init__()
        for name in reversed(UNITS):
            flat_n = torch.cat([piece(p, shard).flatten() for _, p in parameters_of(net, name)])
            if flat_n.numel():
                self.register_parameter(name, nn.Parameter(flat_n.repeat(NUM_REPLICAS, 1)))

    def forward(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())


def assembled(net: nn.Module, pieces: list[dict[str, Tensor]], replica: int) -> Weights:
    """A replica's whole weights, put together from the pieces of all shards."""
    weights = {}
    for unit in UNITS:
        starts = [0] * NUM_SHARDS
        for name, parameter in parameters_of(net, unit):
            rows = []
            for shard in range(NUM_SHARDS):
                shape, start = piece(parameter, shard).shape, starts[shard]
                starts[shard] += shape.numel()
                if shape.numel():
                    flat_n = pieces[shard][unit][replica]
                    rows.append(flat_n[start : starts[shard]].view(shape))
            weights[name] = torch.cat(rows)
    return weights


def replicas_of(shard: int) -> StackedCommunicator:
    """The processes of a shard, with the numbers by which they draw random numbers."""
    communicator = StackedCommunicator(NUM_REPLICAS, nodes=NODES)
    communicator.members = tuple(shard + NUM_SHARDS * r for r in range(NUM_REPLICAS))
    return communicator


def in_pieces(name: str) -> Weights:
    """The consensus' weights after training by a row, piece beside piece."""
    net = Net()
    modules = [Pieces(net, shard) for shard in range(NUM_SHARDS)]
    optimizers = [make_two_groups(name, module.named_parameters()) for module in modules]
    engines = [
        Engine(module, optimizer, SHARDED_ROWS[name](), replicas_of(shard), bucket_bytes=1)
        for shard, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True))
    ]
    for step in range(NUM_STEPS):
        pieces = [module() for module in modules]
        loss = torch.zeros(())
        for replica in range(NUM_REPLICAS):
            weights = assembled(net, pieces, replica)
            for shard in range(NUM_SHARDS):
                x_b, y_b = batch(step, replica, shard)
                outputs = functional_call(net, weights, (x_b,))
                loss = loss + F.cross_entropy(outputs, y_b) / NUM_SHARDS
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    with engines[0].consensus(), engines[1].consensus():
        weights = assembled(net, [module() for module in modules], 0)
    return {key: value.detach().clone() for key, value in weights.items()}


def unsharded(name: str, algorithm: Algorithm | None = None) -> Weights:
    """The consensus' weights after training whole models by a row, or by another algorithm: each
    worker has the batches of both processes of a replica.
    """
    communicator = StackedCommunicator(NUM_REPLICAS, nodes=NODES)
    model = StackedModel(Net(), NUM_REPLICAS)
    named = [(key.removeprefix("module."), p) for key, p in model.named_parameters()]
    optimizer = make_two_groups(name, named)
    engine = Engine(
        model, optimizer, algorithm or SHARDED_ROWS[name](), communicator, bucket_bytes=4096
    )
    for step in range(NUM_STEPS):
        batches = [
            zip(*(batch(step, replica, shard) for shard in range(NUM_SHARDS)), strict=True)
            for replica in range(NUM_REPLICAS)
        ]
        whole = ([torch.cat(parts) for parts in of_replica] for of_replica in batches)
        x_wb, y_wb = (torch.stack(part) for part in zip(*whole, strict=True))
        optimizer.zero_grad()
        outputs = model(x_wb)
        loss = F.cross_entropy(outputs.flatten(0, 1), y_wb.flatten(), reduction="sum")
        (loss / y_wb.shape[1]).backward()
        optimizer.step()
    with engine.consensus():
        return {key: value[0].detach().clone() for key, value in named}
