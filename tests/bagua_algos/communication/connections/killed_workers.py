"""Scripts whose worker 1 is killed while all share memory: `python -m
tests.bagua_algos.communication.connections.killed_workers FOLDER 3`.

A process that worker 1 has forked, as a loader's, outlives it. What ends the others is in
`FOLDER/r.txt`, with the seconds that it took them to notice.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore

import bagua_algos
from bagua_algos.distribute import _engine
from host.processes import fork
from tests import warm

LOADER_S = 60.0


def work(rank: int, folder: Path, world_size: int) -> int:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(str(folder / "store"), world_size)
    # No backend is named: torch takes one for each kind of device, gloo for the CPU.
    dist.init_process_group(store=store, rank=rank, world_size=world_size)
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bagua_algos.distribute(model, optimizer, bagua_algos.AllReduce())
    assert _engine(model).context.communicator.shares_memory
    began_s = time.monotonic()
    try:
        for step in range(100):
            if (rank, step) == (1, 5):
                os.fork() or time.sleep(LOADER_S)
                os.kill(os.getpid(), signal.SIGKILL)
            began_s = time.monotonic()
            optimizer.zero_grad()
            model(torch.ones(4, 100)).square().mean().backward()
            optimizer.step()
    except bagua_algos.CommunicationError as error:
        took_s = time.monotonic() - began_s
        (folder / f"{rank}.txt").write_text(f"{took_s}\n{error}")
        return 3
    return 0


def main(folder: Path, world_size: int) -> None:
    warm.before_forks()
    pids = [fork(lambda rank=rank: work(rank, folder, world_size)) for rank in range(world_size)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [3, -signal.SIGKILL, 3], codes


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
