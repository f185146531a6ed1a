"""Runs whose processes torchrun starts: as a user starts them, or in forks of one process, which
takes a fifth of the time.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests import app

SMALL = ("net=none", "model=mlp", "eval_every=20", "log_every=1", "cluster.timeout_s=20")


GROWS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it agents of torch 2.13 wait for each other for ever when one joins later."""

_MODULE = "torch.distributed.run"


def start(
    folder: Path,
    *arguments: str,
    options: Sequence[str] = (),
    workers: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> app.Command:
    """Start an agent of torchrun in a fork, for `workers` processes of one run, its forks."""
    forked = ["--start-method=fork", "--run-path", str(app.ROOT / "experiments/__main__.py")]
    return app.Command(
        *(f"--nproc-per-node={workers}", *options, *forked, *arguments, f"hydra.run.dir={folder}"),
        module=_MODULE,
        environment=environment,
    )


def run(folder: Path, *arguments: str) -> str:
    """Run two processes to their end by the command of a user; returns what they printed."""
    words = [sys.executable, "-m", _MODULE, "--nproc-per-node=2", "-m", "experiments"]
    ended = subprocess.run(
        [*words, *arguments, f"hydra.run.dir={folder}"],
        cwd=app.ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
