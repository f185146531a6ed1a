"""What simulated runs take of the host's memory, beside what `check_memory` counts for them.

Each run is in a process of its own, as a command's is; what it and its children hold is summed up
by the kernel's proportional set sizes, in which a page that several share counts once.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.memory.fitting import needed_bytes
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.simulate import simulate
from host.errors import Failure
from host.processes import fork, kill

EVERY_S = 0.05


class Case(NamedTuple):
    """Workers whose memory is measured."""

    words: tuple[str, ...]
    workers: int
    batch_size: int
    algorithm: str = "allreduce"


CASES = (
    Case(("task=fashion_mnist", "model=mlp"), 128, 32),
    Case(("task=mnist5k", "model=cnn"), 16, 32),
    Case(("task=movie_snippets", "model=fast_text"), 64, 32),
    Case(("task=movie_snippets", "model=minilm"), 2, 8),
    Case(("task=fashion_mnist", "model=mlp"), 64, 32, "low_precision_decentralized"),
    Case(("task=fashion_mnist", "model=mlp"), 64, 32, "one_bit_adam"),
)


def print_counted() -> None:
    """Print, for each of `CASES`, what is counted for it and the most that it took."""
    for case in CASES:
        counted, taken = measured(case)
        print(
            f"{case.algorithm}, {' '.join(case.words)}, "
            f"{case.workers} workers x {case.batch_size}: "
            f"{counted / 1e6:,.0f} MB counted, at most {taken / 1e6:,.0f} MB taken, "
            f"ratio {counted / taken:.2f}",
            flush=True,
        )


def measured(case: Case) -> tuple[int, int]:
    """The bytes that `check_memory` counts for `case`, and the most that it took."""
    ours, theirs = Pipe()
    pid = fork(lambda: _run(case, theirs))
    theirs.close()
    try:
        counted = ours.recv()
        before = most = _held_bytes(pid)
        ours.send("go")
        while not ours.poll(EVERY_S):
            most = max(most, _held_bytes(pid))
        ours.recv()
    except EOFError:
        raise Failure(f"the run of {case.words} died; what it printed says why") from None
    finally:
        kill(pid)
    return counted, most - before


def _run(case: Case, parent: Connection) -> int:
    """Tell what is counted, wait, and train with an evaluation on the way and one at the end."""
    torch.set_num_threads(1)
    numbers = [f"workers={case.workers}", f"batch_size={case.batch_size}", "max_steps=2"]
    words = [f"algo={case.algorithm}", "backend=sim", *case.words, *numbers, "eval_every=1"]
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(compose_config(words), Path(folder))
        data = plan.task.load()
        plan = replace(plan, profile=Path(folder, "few_steps.yaml"))
        rehearse(plan, data, sharing=1, num_steps=3, seconds=0).save(Path(folder, "few_steps.yaml"))
        parent.send(needed_bytes(plan, data))
        parent.recv()
        simulate(plan, data, lambda network: None, lambda row: None)
    parent.send("done")
    time.sleep(60)  # until it is killed
    return 0


def _held_bytes(pid: int) -> int:
    """By a process and its descendants."""
    held = 0
    for one in _tree(pid):
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            held += 1024 * int(text.partition("\nPss:")[2].split()[0])
    return held


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _tree(int(child))
