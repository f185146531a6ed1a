"""Trains with PyTorch's own powerSGD_hook on 2 gloo workers:
`python -m tests.bagua_algos.torch_power_sgd FOLDER 2`.

In float64: training amplifies a rounding of float32 to 1e-4 within 20 steps, which would hide a
small difference in the rule.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.cases import batch, losses, make_model
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.gradient_oracle import NUM_STEPS, sgd

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


def train(communicator: ProcessGroupCommunicator) -> Tensor:
    """This worker's weights in the end, as they lie in a bucket."""
    model = DistributedDataParallel(make_model().to(DTYPE))
    state = PowerSGDState(None, RANK, START_STEP)
    model.register_comm_hook(state, hook_with_first_q)
    optimizer = sgd(model, momentum=0.9)
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, communicator.ranks[0])
        optimizer.zero_grad()
        losses(model(x_b.to(DTYPE))[None], y_b[None]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in reversed(list(model.parameters()))])


if __name__ == "__main__":
    sys.exit(fork_workers(train, Path(sys.argv[1]), int(sys.argv[2])))
