"""Runs all training cases on real gloo workers: `python -m tests.bagua_algos.training_workers
FOLDER 4`.

Also those that only real workers can run, since they differ in more than numbers.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from bagua_algos import AllReduce
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.autotune.cases import TUNED
from tests.bagua_algos.cases import NODES, Tensors, batch, losses
from tests.bagua_algos.gloo import fork_rounds
from tests.bagua_algos.training_cases import CASES

BATCH_SIZES = (16, 12, 5, 0)
CLIP_NORM = 0.1


class Branches(nn.Module):
    """Layers that all, some and no workers use."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x_b: torch.Tensor, *, is_used: bool) -> torch.Tensor:
        y_b = self.always(x_b)
        return self.sometimes(y_b) if is_used else y_b


def make_plain_model() -> nn.Module:
    """Without any buffer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 37), nn.ReLU(), nn.Linear(37, 7))


def unused_parameters(communicator: ProcessGroupCommunicator) -> Tensors:
    """Gradients of three layers, NaN in place of None."""
    torch.manual_seed(0)
    model, rank = Branches(), communicator.ranks[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    engine = Engine(model, optimizer, AllReduce(), communicator, find_unused_parameters=True)
    results = {}
    for step in range(3):  # whoever has had None before has a gradient later, and the reverse
        optimizer.zero_grad()
        model(torch.ones(1, 3), is_used=rank == step).sum().backward()
        for name, layer in model.named_children():
            gradient = layer.bias.grad
            results[f"{name} {step}"] = torch.full((1, 3), torch.nan)
            if gradient is not None:
                results[f"{name} {step}"] = gradient[None].clone()
        optimizer.step()
    engine.close()
    return results | {"never's weight": model.never.weight.detach()[None]}


def different_starts(communicator: ProcessGroupCommunicator) -> Tensors:
    """What a model that each worker has initialised by itself holds, once it is distributed."""
    torch.manual_seed(communicator.ranks[0])
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model.register_buffer("features", torch.randn(3, 2, dtype=torch.float64))
    model.register_buffer("mask", torch.rand(7) > 0.5)
    model.register_buffer("nothing", torch.zeros(0))
    model[1].num_batches_tracked += communicator.ranks[0] + 1
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    Engine(model, optimizer, AllReduce(), communicator).close()
    return {name: value.clone()[None] for name, value in model.state_dict().items()}


def uneven_batches(communicator: ProcessGroupCommunicator) -> Tensors:
    """Weights after three clipped steps on batches of different size, and one that is empty."""
    model, rank = make_plain_model(), communicator.ranks[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = Engine(model, optimizer, AllReduce(), communicator, bucket_bytes=256)
    num_examples = BATCH_SIZES[rank]
    for step in range(3):
        optimizer.zero_grad()
        if num_examples:
            x_b, y_b = (part[:num_examples] for part in batch(step, rank))
            share = communicator.world_size * num_examples / sum(BATCH_SIZES)
            (share * losses(model(x_b)[None], y_b[None])).backward()
        else:
            engine.empty_backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
    with engine.consensus():
        results = {name: p.detach()[None].clone() for name, p in model.named_parameters()}
    engine.close()
    return results


REAL_CASES = {
    "unused parameters": unused_parameters,
    "different starts": different_starts,
    "uneven batches": uneven_batches,
}


if __name__ == "__main__":
    folder, world_size = Path(sys.argv[1]), int(sys.argv[2])
    sys.exit(fork_rounds(CASES | REAL_CASES | TUNED, folder, world_size, nodes=NODES[world_size]))
