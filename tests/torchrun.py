"""Runs a script on processes of this host with what torchrun tells them, forked from one that has
imported what the script imports: `python -m tests.torchrun NUM_PROCESSES SCRIPT`.
"""

import ast
import importlib
import os
import runpy
import sys
from pathlib import Path

import torch

from host.processes import fork
from tests import warm
from tests.ports import held_port


def run(num_processes: int, script: str) -> int:
    """The highest exit code of all."""

    def work(rank: int, port: int) -> int:
        torch.set_num_threads(1)
        sys.argv = [script]
        os.environ |= {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            **{"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"},
        }
        runpy.run_path(script, run_name="__main__")
        return 0

    for node in ast.walk(ast.parse(Path(script).read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:  # a library may import it only when it is asked for
                getattr(importlib.import_module(node.module), name.name, None)
    warm.before_forks()
    with held_port() as port:
        pids = [fork(lambda rank=rank: work(rank, port)) for rank in range(num_processes)]
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2]))
