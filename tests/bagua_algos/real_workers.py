"""Runs cases on real gloo workers: `python -m tests.bagua_algos.real_workers FOLDER 4 [CASE ...]`.

Without names all of them, and what only real workers can do (`REAL_ONLY`).
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.communication.hierarchy import Hierarchy
from bagua_algos.communication.primitives import all_reduce_mean_
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


def shared_memory(communicator: ProcessGroupCommunicator) -> Tensors:
    """Means through memory, and over gloo by two patterns; of a tensor with gaps, too, and by
    nodes.
    """
    numbers = torch.Generator().manual_seed(communicator.ranks[0])
    x_w = torch.randn(1, 3, 20_011, generator=numbers)
    results: Tensors = {}
    for name, options in (
        ("memory", {"shared_memory": True}),
        ("direct", {"fixed_order": True}),
        ("ring", {}),
    ):
        whole = communicator.with_transport(**options)
        workers = whole.duplicate()
        mean_w, wide_w, by_nodes_w = x_w.clone(), x_w.repeat_interleave(2, 2), x_w.clone()
        workers.all_reduce_mean_(mean_w)
        workers.all_reduce_mean_(wide_w[:, :, ::2])
        all_reduce_mean_(by_nodes_w, workers, hierarchical=True)
        assert isinstance(workers.hierarchy, Hierarchy)
        shares = [workers, *(node.communicator for node in workers.hierarchy._nodes)]
        results |= {
            name: mean_w,
            f"{name}, with gaps": wide_w[:, :, ::2],
            f"{name}, the gaps": wide_w[:, :, 1::2] - x_w,
            f"{name}, by nodes": by_nodes_w,
            f"{name} shares": torch.tensor([[one.shares_memory for one in shares]]),
        }
        workers.close()
        whole.close()
    return results


REAL_ONLY = {"torch_ddp": torch_ddp, "hosts": hosts, "shared_memory": shared_memory}


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
