"""What three real workers get by each transport: `python -m
tests.bagua_algos.communication.three_workers FOLDER 3`.
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bagua_algos import AllReduce
from bagua_algos.communication.communicator import Nodes
from bagua_algos.communication.process_group import ProcessGroupCommunicator, nodes_by_host
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.untrained import that_differ
from tests.bagua_algos.cases import collectives
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.recorder import Recorder

SUMMANDS = (1e8, 1.0, -1e8)
"""In float32 only (first + last) + middle is 1, and that is the order of halving and doubling."""
NUM_ELEMENTS = 12_288
"""Of three parts of the smallest size."""


def main(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    return {
        "collectives": collectives(workers),
        "hosts": nodes_by_host(),
        "two hosts": two_hosts(workers),
        "sums": sums(workers),
        "striped": striped(workers),
        "fp16": fp16(workers),
        "begun": begun(workers),
        "parts": parts(workers),
        "again": again(workers),
        "start": start(workers),
        "laid out": laid_out(workers),
        "own groups": own_groups(workers),
    }


def two_hosts(workers: ProcessGroupCommunicator) -> Nodes:
    """The nodes where the second worker's host has another name."""
    name = f"host {workers.ranks[0] % 2}"
    with mock.patch("socket.gethostname", return_value=name):
        return nodes_by_host()


def sums(workers: ProcessGroupCommunicator) -> dict[str, Tensor]:
    """By each way to add up."""
    num_bytes = 4 * NUM_ELEMENTS
    ways = {
        "ring": {},
        "a byte too large": {"halving_doubling_bytes": num_bytes - 1},
        "halving and doubling": {"halving_doubling_bytes": num_bytes},
        "directly": {"fixed_order": True},
        "directly by two streams": {"fixed_order": True, "streams": 2},
    }
    found = {}
    for way, options in ways.items():
        duplicate = workers.with_transport(**options).duplicate()
        found[way] = torch.full((1, NUM_ELEMENTS), SUMMANDS[workers.ranks[0]])
        duplicate.all_reduce_mean_(found[way])
        duplicate.close()
    return found


def striped(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """A duplicate that has more streams for a while."""
    told: list[int] = []
    workers.on_streams = told.append
    duplicate = workers.duplicate()
    workers.on_streams = None
    x_w = torch.arange(float(NUM_ELEMENTS))[None] + 1e5 * workers.ranks[0]
    found: dict[str, Any] = {"streams": [], "told": told}
    for streams in (1, 3, 2):
        duplicate.use_transport(
            streams=streams, halving_doubling_bytes=0, fixed_order=False, pieces=False
        )
        found["streams"].append((duplicate.streams, len(duplicate.stripes.groups)))
        found[f"gathered by {streams}"] = duplicate.all_gather(x_w)
    duplicate.close()
    return found


def fp16(workers: ProcessGroupCommunicator) -> Tensor:
    """The mean of numbers whose sum is beyond the type."""
    x_w = torch.full((1, 5), 28_800.0 if workers.ranks[0] == 1 else 57_600.0, dtype=torch.float16)
    workers.all_reduce_mean_(x_w)
    return x_w


def begun(workers: ProcessGroupCommunicator) -> Tensor:
    """The sum that a future has, as DDP's hooks wait for it: also where another is late."""
    duplicate = workers.with_transport(streams=2).duplicate()
    x_w = torch.full((1, NUM_ELEMENTS), workers.ranks[0] + 1.0)
    if workers.ranks[0] == 1:
        time.sleep(0.1)
    total_w = duplicate.stripes.begin_all_reduce_(x_w).wait()
    found_w = total_w.clone()
    duplicate.close()
    return found_w


def parts(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """Workers 0 and 2 by themselves, and what the whole hears of them."""
    whole = workers.duplicate()
    whole.observer = recorder = Recorder()
    [part] = whole.split([[0, 2], [1]])
    x_w = torch.full((1, 3), float(workers.ranks[0]))
    part.run_(x_w, lambda x_p, among: among.all_reduce_mean_(x_p))
    whole.use_transport(streams=2, halving_doubling_bytes=7, fixed_order=True, pieces=False)
    theirs = part.communicator
    found = {
        "mean": x_w,
        "heard": [(o.name, o.num_bytes, o.ranks) for o in recorder.operations],
        "members": theirs.members,
        "transport": (theirs.streams, theirs.halving_doubling_bytes, theirs.fixed_order),
    }
    whole.close()
    return found


def again(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """Connections that only some have left are not used again, those that all have left are."""
    both, others = workers.duplicate(), workers.duplicate()
    assert both.group is not None
    name = both.group.group_name
    both.close()
    if workers.ranks[0] == 0:
        others.close()
    first, second = workers.duplicate(), workers.duplicate()
    x_w = torch.full((1, 3), float(workers.ranks[0]))
    second.all_reduce_mean_(x_w)
    assert first.group is not None
    return {"is used again": first.group.group_name == name, "mean": x_w}


def laid_out(workers: ProcessGroupCommunicator) -> dict[str, tuple[Tensor, Tensor]]:
    """What each operation makes of numbers without gaps, and of the same ones that each worker has
    laid out otherwise.
    """
    rank = workers.ranks[0]
    x_wN = torch.arange(36.0).view(1, 3, 3, 4) + 100 * rank
    x_w = x_wN[:, 0].clone()

    def in_place(operate: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        plain, other = x_w.clone(), otherwise(x_w, rank)
        operate(plain)
        operate(other)
        return plain, other

    return {
        "all_to_all": (workers.all_to_all(x_wN), workers.all_to_all(otherwise(x_wN, rank))),
        "reduce_scatter_mean": (
            workers.reduce_scatter_mean(x_wN),
            workers.reduce_scatter_mean(otherwise(x_wN, rank)),
        ),
        "all_gather": (workers.all_gather(x_w), workers.all_gather(otherwise(x_w, rank))),
        "exchange": (
            workers.exchange(x_w, (1, 2, 0)),
            workers.exchange(otherwise(x_w, rank), (1, 2, 0)),
        ),
        "all_reduce_mean_": in_place(workers.all_reduce_mean_),
        "broadcast_": in_place(lambda x: workers.broadcast_(x, 1)),
    }


def otherwise(x: Tensor, rank: int) -> Tensor:
    """With gaps, with turned axes, or plainly."""
    with_gaps = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x)
    return [with_gaps, x.mT.contiguous().mT, x.clone()][rank]


def start(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """What a model that all have seeded alike but for one layer holds once it is distributed, and
    what travelled; then which tensors differ.
    """
    duplicate, rank = workers.duplicate(), workers.ranks[0]
    torch.manual_seed(0)
    apart = nn.Linear(64, 2)
    model = nn.Sequential(nn.Linear(64, 64), apart, nn.BatchNorm1d(2))
    with torch.no_grad():
        apart.bias.add_(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    duplicate.observer = recorder = Recorder()
    Engine(model, optimizer, AllReduce(), duplicate, bucket_bytes=64).close()
    moved = torch.arange(6.0).roll(rank)  # the same numbers, so the same sum of bits
    tensors = {
        "alike": torch.arange(6.0).view(2, 3).T,
        "none": torch.zeros(0),
        "moved": moved,
        "sign of zero": torch.zeros(2) * (-1.0) ** (rank == 2),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "truths": torch.tensor([True, rank == 1]),
        "complex": torch.tensor(1j).conj() * (1 + (rank == 1)),
    }
    names = {id(x): name for name, x in tensors.items()}
    differ = [names[id(x)] for x in that_differ(list(tensors.values()), duplicate)]
    duplicate.close()
    return {"model": model.state_dict(), "messages": recorder.messages, "differ": differ}


def own_groups(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """The means over duplicates and parts, once the script has made groups of some workers."""
    dist.new_group([0, 1])
    dist.new_group([1])
    duplicate = ProcessGroupCommunicator(timeout=timedelta(seconds=20)).duplicate()
    [part] = duplicate.split([[0, 2], [1]])
    whole_w = torch.full((1, 3), float(workers.ranks[0]))
    part_w = whole_w.clone()
    duplicate.all_reduce_mean_(whole_w)
    part.run_(part_w, lambda x_p, among: among.all_reduce_mean_(x_p))
    duplicate.close()
    return {"whole": whole_w, "part": part_w}


if __name__ == "__main__":
    sys.exit(fork_workers(main, Path(sys.argv[1]), int(sys.argv[2])))
