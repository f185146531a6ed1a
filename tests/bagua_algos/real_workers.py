"""Runs all cases on 4 real gloo workers: `python -m tests.bagua_algos.real_workers FOLDER`.

A program of its own, since it forks: torch is imported once, before there are threads. Also runs
what only real workers can, PyTorch's own DistributedDataParallel.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.process_group import ProcessGroupCommunicator, file_rendezvous
from netsim.processes import fork
from tests.bagua_algos.cases import (
    CASES,
    NUM_STEPS,
    WORLD_SIZE,
    Tensors,
    batch,
    losses,
    make_model,
    make_optimizer,
)


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


class Recorder:
    """An observer that adds up the predicted bytes of each operation."""

    def __init__(self) -> None:
        self.bytes_sent = 0.0

    def on_operation(self, operation) -> None:
        self.bytes_sent += operation.bytes_sent


def run_worker(rank: int, folder: Path, store: str) -> int:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with file_rendezvous(
        store, backend="gloo", rank=rank, world_size=WORLD_SIZE, timeout_s=60
    ) as communicator:
        results = {}
        for name, case in [*CASES.items(), ("torch_ddp", torch_ddp)]:
            communicator.observer = Recorder()
            results[name] = case(communicator)
            results[name]["predicted bytes"] = torch.tensor([communicator.observer.bytes_sent])
    torch.save(results, folder / f"{rank}.pt")
    return 0


def main(folder: Path) -> int:
    with tempfile.TemporaryDirectory() as rendezvous:
        store = str(Path(rendezvous) / "store")
        pids = [
            fork(lambda rank=rank: run_worker(rank, folder, store)) for rank in range(WORLD_SIZE)
        ]
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
