"""Runs cases on real gloo workers: `python -m tests.bagua_algos.real_workers FOLDER 4 [CASE ...]`.

Without names all of them, and what only real workers can do (`REAL_ONLY`).
"""

import sys
from collections.abc import Callable
from functools import partial
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
from tests.bagua_algos.gloo import fork_rounds
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


def counted(
    case: Callable[[ProcessGroupCommunicator], Tensors], communicator: ProcessGroupCommunicator
) -> Tensors:
    """What the case returns, and the bytes that its operations report."""
    communicator.observer = recorder = Recorder()
    result = case(communicator)
    return result | {"predicted bytes": torch.tensor([recorder.bytes_sent])}


if __name__ == "__main__":
    folder, world_size, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    every = CASES | REAL_ONLY
    cases = {name: partial(counted, every[name]) for name in names or every}
    sys.exit(fork_rounds(cases, folder, world_size, nodes=NODES[world_size]))
