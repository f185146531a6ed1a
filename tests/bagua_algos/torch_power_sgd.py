"""Trains with PyTorch's own powerSGD_hook on 2 gloo workers:
`python -m tests.bagua_algos.torch_power_sgd FOLDER`.

In float64: training amplifies a rounding of float32 to 1e-4 within 20 steps, which would hide a
small difference in the rule.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.process_group import file_rendezvous
from netsim.processes import fork
from tests.bagua_algos.cases import batch, losses, make_model
from tests.bagua_algos.gradient_oracle import NUM_STEPS, sgd

WORLD_SIZE = 2
RANK = 2
START_STEP = 2  # the least that the hook allows
DTYPE = torch.float64


def first_q(num_columns: int) -> Tensor:
    """The Q `[num_columns, RANK]` that power iteration starts from."""
    generator = torch.Generator().manual_seed(num_columns)
    return torch.randn(num_columns, RANK, generator=generator, dtype=DTYPE)


def hook_with_first_q(state: PowerSGDState, bucket):
    """`powerSGD_hook`, given as its memory the Qs that we choose where it would draw its own."""
    if state.iter == START_STEP:
        assert bucket.is_last()
        assert bucket.index() == 0
        matrices = [g for g in bucket.gradients() if g.dim() == 2]
        num_rows = sum(len(g) for g in matrices)
        state.p_memory_dict[0] = torch.zeros(num_rows * RANK, dtype=DTYPE)
        state.q_memory_dict[0] = torch.cat([first_q(g.shape[1]).flatten() for g in matrices])
    return powerSGD_hook(state, bucket)


def run_worker(rank: int, folder: Path, store: str) -> int:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with file_rendezvous(store, backend="gloo", rank=rank, world_size=WORLD_SIZE, timeout_s=60):
        model = DistributedDataParallel(make_model().to(DTYPE))
        state = PowerSGDState(None, RANK, START_STEP)
        model.register_comm_hook(state, hook_with_first_q)
        optimizer = sgd(model, momentum=0.9)
        for step in range(NUM_STEPS):
            x_b, y_b = batch(step, rank)
            optimizer.zero_grad()
            losses(model(x_b.to(DTYPE))[None], y_b[None]).backward()
            optimizer.step()
    flat = [p.detach().flatten() for p in reversed(list(model.parameters()))]
    torch.save(torch.cat(flat), folder / f"{rank}.pt")
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
