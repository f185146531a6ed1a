"""Runs cases on real gloo workers: `python -m tests.bagua_algos.real_workers FOLDER 4 [CASE ...]`.

Without names all of them, and what only real workers can do (`REAL_ONLY`).
"""

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.communication.process_group import ProcessGroupCommunicator, nodes_by_host
from tests.bagua_algos.cases import (
    CASES,
    NODES,
    NUM_STEPS,
    Tensors,
    batch,
    losses,
    make_model,
    make_optimizer,
)
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.recorder import Recorder


def torch_ddp(communicator: ProcessGroupCommunicator) -> Tensors:
    """The same training by DistributedDataParallel."""
    model = DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, communicator.ranks[0])
        optimizer.zero_grad()
        losses(model(x_b)[None], y_b[None]).backward()
        optimizer.step()
    return {name: p.detach().reshape(1, -1) for name, p in model.named_parameters()}


def hosts(communicator: ProcessGroupCommunicator) -> Tensors:
    """All run on this one."""
    return {"nodes": torch.tensor(nodes_by_host())}


REAL_ONLY = {"torch_ddp": torch_ddp, "hosts": hosts}


def run(names: list[str], communicator: ProcessGroupCommunicator) -> dict[str, Tensors]:
    cases, results = CASES | REAL_ONLY, {}
    for name in names or cases:
        communicator.observer = recorder = Recorder()
        results[name] = cases[name](communicator)
        results[name]["predicted bytes"] = torch.tensor([recorder.bytes_sent])
    return results


if __name__ == "__main__":
    folder, world_size, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    nodes = NODES[world_size]
    sys.exit(fork_workers(lambda workers: run(names, workers), folder, world_size, nodes=nodes))
