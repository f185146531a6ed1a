"""What four real workers move in pieces, and what they say of one that has gone: `python -m
tests.experiments.validation.streams.pieces_workers FOLDER 4`.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from experiments.validation.streams.pieces import Pieces, Way
from tests.bagua_algos.gloo import fork_workers

RIGHT = (1, 2, 3, 0)
WAYS = {
    "taken": Way(piece_bytes=400),
    "dealt": Way(piece_bytes=400, are_dealt=True),
    "anew": Way(piece_bytes=400, are_kept=False),
}
SIZES = (4, 400, 404, 8_000, 4, 20_000)
"""Elements of 4 bytes in four shares: a part of a piece for each worker, one piece, one and a bit,
five, a part again, and more than are posted ahead. In one go a ring's neighbour gets four times as
many.
"""


def sent(rank: int, num_elements: int) -> Tensor:
    """No two elements of any worker are the same."""
    return torch.arange(num_elements, dtype=torch.int32)[None] + 1_000_000 * rank


def main(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    duplicate = workers.with_transport(streams=3).duplicate()
    found: dict[str, Any] = {}
    for tag, (name, way) in enumerate(WAYS.items(), 1):
        duplicate.stripes = Pieces(duplicate.stripes, 4, way, tag)
        found[name] = [moved(duplicate, num_elements) for num_elements in SIZES]
    found["gone"] = gone(duplicate)
    return found


def moved(workers: ProcessGroupCommunicator, num_elements: int) -> tuple[Tensor, Tensor]:
    """What has arrived from the left, and from all."""
    x_w = sent(workers.ranks[0], num_elements)
    return workers.exchange(x_w, RIGHT), workers.all_to_all(x_w.view(1, 4, -1))


def gone(workers: ProcessGroupCommunicator) -> tuple[str, float]:
    """What the error says and the seconds until then, where the last worker has left."""
    if workers.ranks[0] == 3:
        return "", 0.0
    started_s = time.monotonic()
    try:
        moved(workers, 80_000)
    except CommunicationError as error:
        return str(error), time.monotonic() - started_s
    return "nothing", 0.0


if __name__ == "__main__":
    folder, world_size = sys.argv[1:]
    sys.exit(fork_workers(main, Path(folder), int(world_size)))
