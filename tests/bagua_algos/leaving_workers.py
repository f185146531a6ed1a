"""Scripts by asynchronous averaging that never call `release`: `python -m
tests.bagua_algos.leaving_workers FOLDER`.

Worker r of each script writes its errors to `FOLDER/SCRIPT.r`, and all exit codes are in
`FOLDER/codes.json`. Workers end as any program does, not by `os._exit`.
"""

import atexit
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_default_store

import bagua_algos
from bagua_algos.communication.threads import job_thread
from experiments.plan.late_compiler import put_off_compiler
from tests import app

NUM_WORKERS = 3


class Trainer:
    """A worker of torch's default group."""

    def __init__(self, interval_ms: float = 0) -> None:
        self._model = nn.Linear(64, 64)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        bagua_algos.distribute(
            self._model, self._optimizer, bagua_algos.AsyncModelAverage(interval_ms=interval_ms)
        )

    def steps(self, number: int) -> None:
        for _ in range(number):
            self._optimizer.zero_grad()
            self._model(torch.ones(4, 64)).square().mean().backward()
            self._optimizer.step()
            time.sleep(0.002)

    def until_warned(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            until_s = time.monotonic() + 30
            while not caught and time.monotonic() < until_s:
                self.steps(1)
            self.steps(20)
        for warning in caught:
            print(f"warned: {warning.message}", file=sys.stderr)


def all_end(rank: int) -> None:
    Trainer().steps(20 + 5 * rank)


def one_leaves(rank: int) -> None:
    trainer = Trainer()
    trainer.steps(10)
    if rank > 0:
        trainer.until_warned()


def one_leaves_at_once(rank: int) -> None:
    trainer = Trainer()
    if rank > 0:
        trainer.until_warned()


def one_leaves_and_the_others_end(rank: int) -> None:
    """They end by themselves once it has left word, whether they have heard of it by then or not:
    on a busy machine the word may take longer than all of their steps.
    """
    store = _get_default_store()
    if rank == 0:  # what is registered first is done last: when it has left word
        atexit.register(lambda: store.set("one has left", ""))
    trainer = Trainer()
    trainer.steps(10)
    if rank > 0:
        store.wait(["one has left"], timedelta(seconds=60))
        trainer.steps(200)


def one_leaves_within_a_round(rank: int) -> None:
    """Worker 0 has begun a round that the others join only when it is gone; its exit code is 3."""
    trainer, store = Trainer(), _get_default_store()
    trainer.steps(10)
    if rank == 0:
        job_thread.LEAVE_S = 0.1
        trainer.steps(20)
        store.set("who leaves", str(os.getpid()))
        sys.exit(3)
    pid = int(store.get("who leaves"))
    app.wait_for(lambda: not app.is_running(pid), 60, "end of worker 0")
    trainer.until_warned()


def one_leaves_with_the_store(rank: int) -> None:
    """Worker 0 serves the store; no round is due that could tell the others of its end."""
    trainer = Trainer(interval_ms=60_000)
    trainer.steps(10)
    if rank > 0:
        trainer.until_warned()


SCRIPTS: list[Callable[[int], None]] = [
    *(all_end, one_leaves, one_leaves_at_once, one_leaves_and_the_others_end),
    one_leaves_within_a_round,
    one_leaves_with_the_store,
]


def store_of(script: Callable[[int], None], rank: int, folder: Path) -> Store:
    files = FileStore(str(folder / f"{script.__name__}.store"), NUM_WORKERS)
    if script is not one_leaves_with_the_store:
        return files
    if rank > 0:
        return TCPStore("127.0.0.1", int(files.get("port")), is_master=False)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    files.set("port", str(store.port))
    return store


def start(script: Callable[[int], None], rank: int, folder: Path) -> None:
    os.dup2(os.open(folder / f"{script.__name__}.{rank}", os.O_CREAT | os.O_WRONLY), 2)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = store_of(script, rank, folder)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_WORKERS)
    script(rank)
    gc.collect()  # the trainers, which a script has dropped, are to take their leave all the same


def main(folder: Path) -> None:
    put_off_compiler()  # optimizers would import it, and each worker's end take it apart
    gc.collect()
    gc.freeze()
    codes = {}
    for script in SCRIPTS:
        pids = []
        for rank in range(NUM_WORKERS):
            pids.append(os.fork())
            if pids[-1] == 0:
                return start(script, rank, folder)
        codes[script.__name__] = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
