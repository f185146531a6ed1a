"""Runs all cases of sharded models on 4 gloo processes, 2 replicas of 2 shards:
`python -m tests.bagua_algos.fsdp2.workers FOLDER 4`.
"""

import sys
from pathlib import Path

import torch.distributed.fsdp  # noqa: F401  (before there are threads)

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.fsdp2 import refusals, rows, scripts
from tests.bagua_algos.fsdp2.sharding import Place
from tests.bagua_algos.gloo import fork_workers


def run(communicator: ProcessGroupCommunicator) -> dict[str, dict]:
    place = Place.of(communicator)
    return {
        part.__name__.rpartition(".")[2]: {name: case(place) for name, case in part.CASES.items()}
        for part in (rows, scripts, refusals)
    }


if __name__ == "__main__":
    sys.exit(fork_workers(run, Path(sys.argv[1]), int(sys.argv[2])))
