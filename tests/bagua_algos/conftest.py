import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bagua_algos.stacked import StackedCommunicator
from tests.bagua_algos.cases import CASES, WORLD_SIZE, Tensors

# As the real workers: sums in one order.
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def real(tmp_path_factory) -> dict[str, Tensors]:
    """Every case as 4 gloo workers did it, their rows stacked: what `simulated` is, from real
    messages.
    """
    folder = tmp_path_factory.mktemp("real_workers")
    program = [sys.executable, "-W", "error", "-m", "tests.bagua_algos.real_workers", str(folder)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    workers = [torch.load(folder / f"{rank}.pt") for rank in range(WORLD_SIZE)]
    return {
        name: {key: torch.cat([w[name][key] for w in workers]) for key in workers[0][name]}
        for name in [*CASES, "torch_ddp"]
    }


@pytest.fixture(scope="session")
def simulated() -> dict[str, Tensors]:
    """Every case on 4 simulated workers."""
    return {name: case(StackedCommunicator(WORLD_SIZE)) for name, case in CASES.items()}
