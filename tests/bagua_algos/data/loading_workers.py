"""What 4 gloo workers load: `python -m tests.bagua_algos.data.loading_workers FOLDER 4`."""

import sys
from pathlib import Path
from typing import Any

import torch

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.data import (
    CachedDataset,
    DiskStore,
    LoadBalancingDistributedSampler,
    measure_complexity,
)
from tests.bagua_algos.data.examples import Sequences
from tests.bagua_algos.gloo import fork_workers


def measured(communicator: ProcessGroupCommunicator, folder: Path) -> dict[str, Any]:
    """Costs of a function, measured in shares; again; and after one host has lost its cache."""
    rank = communicator.ranks[0]
    store = DiskStore(folder=folder / f"host {rank}")
    data, costs = Sequences(), []
    for _ in range(2):
        costs.append(measure_complexity(data, len, cache=store, communicator=communicator).tolist())
    first = data.num_read
    if rank == 2:
        store = DiskStore(folder=folder / "another host")
    costs.append(measure_complexity(data, len, cache=store, communicator=communicator).tolist())
    return {"costs": costs, "read": (first, data.num_read - first)}


def different(communicator: ProcessGroupCommunicator) -> list[str]:
    """Why columns and data sets that differ by worker are refused, also what one alone cannot
    take.
    """
    rank, found = communicator.ranks[0], []
    nan_on_one = float("nan") if rank == 1 else 1.0
    for data, complexity in [
        (Sequences(), [1.0] * 49 + [rank]),
        (Sequences(), [1.0] * 49 + [nan_on_one]),
        (Sequences(num_examples=47 if rank == 2 else 50), len),
    ]:
        try:
            LoadBalancingDistributedSampler(data, complexity)
            found.append("taken")
        except ValueError as error:
            found.append(str(error))
    return found


def epoch(communicator: ProcessGroupCommunicator, folder: Path) -> dict[str, Any]:
    """Two epochs over a data set that all workers have one cache for."""
    data = Sequences()
    cached = CachedDataset(data, DiskStore(folder=folder / "shared"))
    sampler = LoadBalancingDistributedSampler(data, len, batch_size=3, random_level=0.2)
    num_read, lengths, indices = data.num_read, [], []
    for number in range(2):
        sampler.set_epoch(number)
        indices.append(list(sampler))
        lengths.append([len(cached[index]) for index in sampler])
        communicator.all_gather(torch.zeros(1, 1))  # all have read all of theirs
    return {"measured": num_read, "indices": indices, "lengths": lengths, "read": data.num_read}


if __name__ == "__main__":
    folder, world_size = Path(sys.argv[1]), int(sys.argv[2])
    sys.exit(
        fork_workers(
            lambda communicator: {
                "measured": measured(communicator, folder),
                "different": different(communicator),
                "epoch": epoch(communicator, folder),
            },
            folder,
            world_size,
        )
    )
