"""A run that goes on with fewer workers, as torchrun starts them, in forks of one process:
`python -m tests.experiments.elastic FOLDER`.
"""

import os
import signal
import sys
import time
from pathlib import Path

from experiments.__main__ import main
from experiments.training.checkpoints.places import newest
from host.processes import fork
from tests.experiments.torchrun import SMALL
from tests.ports import held_port

NUM_STEPS = 60


def start(folder: str, port: int, num_workers: int, num_steps: int) -> list[int]:
    """The pids of the workers of one start, who meet at `port`."""

    def work(rank: int) -> int:
        os.environ |= {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
            **{"WORLD_SIZE": str(num_workers), "LOCAL_WORLD_SIZE": str(num_workers)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_WORLD_SIZE": "1"},
            **{"TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo"},
        }
        words = ["+algo=allreduce", *SMALL, "checkpoint_every=10", f"max_steps={num_steps}"]
        sys.argv = ["experiments", *words, f"hydra.run.dir={folder}"]
        return main()

    return [fork(lambda rank=rank: work(rank)) for rank in range(num_workers)]


def lose_one(folder: str, port: int) -> int:
    """Train with two workers, kill both, and go on with one; its exit code."""
    pids = start(folder, port, 2, 100_000)
    while (newest(Path(folder)) or 0) < 30:
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    step = newest(Path(folder)) or 0
    (pid,) = start(folder, port, 1, step + NUM_STEPS)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    with held_port() as port:
        sys.exit(lose_one(sys.argv[1], port))
