"""Runs whose processes torchrun starts, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

from tests import app

SMALL = ("net=none", "model=mlp", "eval_every=20", "log_every=1", "cluster.timeout_s=20")


GROWS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it agents of torch 2.13 wait for each other for ever when one joins later."""


def start(
    folder: Path, *arguments: str, options=(), workers=2, environment=MappingProxyType({})
) -> subprocess.Popen[str]:
    """Start an agent of torchrun, for `workers` processes of one run."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={workers}", *options]
    return subprocess.Popen(
        [sys.executable, *torchrun, "-m", "experiments", *arguments, f"hydra.run.dir={folder}"],
        cwd=app.ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, *arguments: str, options=(), workers=2) -> str:
    """Run it to its end; returns what it printed."""
    started = start(folder, *arguments, options=options, workers=workers)
    output, _ = started.communicate(timeout=200)
    assert started.returncode == 0, output
    return output
