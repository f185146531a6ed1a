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
) -> app.Command:
    """Start an agent of torchrun, for `workers` processes of one run. The agent is a fork that has
    imported all that they need, and they are forks of it.
    """
    forks = ("--start-method=fork", "--run-path", str(app.ROOT / "experiments" / "__main__.py"))
    words = (f"--nproc-per-node={workers}", *options, *forks, *of_app(folder, *arguments))
    module, own = "torch.distributed.run", {"OMP_NUM_THREADS": "1", **environment}
    return app.Command(*words, module=module, strict=False, environment=own)


def run(folder: Path, *arguments: str, workers=2) -> str:
    """Run it to its end, from a command line of its own; returns what it printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={workers}"]
    ended = subprocess.run(
        [*torchrun, "-m", "experiments", *of_app(folder, *arguments)],
        cwd=app.ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def of_app(folder: Path, *arguments: str) -> tuple[str, ...]:
    """What the app is asked for."""
    return (*arguments, f"hydra.run.dir={folder}")
