"""Real gloo workers, forked by a program of their own: torch, and what it imports late, is imported
once, before there are threads.

A program calls `fork_workers` or `fork_rounds`, a test calls `run_program`.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bagua_algos.communication.communicator import Nodes
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from host.processes import fork
from tests import app, warm
from tests.once import made_once

CASES_A_ROUND = 60


def fork_workers(
    main: Callable[[ProcessGroupCommunicator], Any],
    folder: Path,
    world_size: int,
    *,
    nodes: Nodes | None = None,
    timeout_s: float = 60,
) -> int:
    """What `main` returns on worker r is saved as `folder / r.pt`; the highest exit code of all."""

    def run_worker(rank: int, store: str) -> int:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        with file_rendezvous(
            store,
            backend="gloo",
            rank=rank,
            world_size=world_size,
            timeout_s=timeout_s,
            nodes=nodes,
        ) as communicator:
            torch.save(main(communicator), folder / f"{rank}.pt")
        return 0

    warm.before_forks()
    with tempfile.TemporaryDirectory() as rendezvous:
        store = str(Path(rendezvous) / "store")
        pids = [fork(lambda rank=rank: run_worker(rank, store)) for rank in range(world_size)]
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def fork_rounds(
    cases: Mapping[str, Callable[[ProcessGroupCommunicator], Any]],
    folder: Path,
    world_size: int,
    *,
    nodes: Nodes | None = None,
) -> int:
    """What each case returns on worker r is saved by its name in `folder / r.pt`; the highest exit
    code of all.

    New workers for many cases: a released model's groups serve the next one, but what a case makes
    by itself torch keeps until a process ends, with a thread of gloo's that wakes a hundred times a
    second.
    """
    names, merged = list(cases), [{} for _ in range(world_size)]
    for first in range(0, len(names), CASES_A_ROUND):
        few = names[first : first + CASES_A_ROUND]
        code = fork_workers(
            lambda workers, few=few: {name: cases[name](workers) for name in few},
            folder,
            world_size,
            nodes=nodes,
        )
        if code:
            return code
        for one, ours in zip(merged, results(folder, world_size), strict=True):
            one.update(ours)
    for rank, one in enumerate(merged):
        torch.save(one, folder / f"{rank}.pt")
    return 0


def run_program(
    module: str, folder: Path, world_size: int, *arguments: str, strict: bool = True
) -> list[Any]:
    """Run `python -m module folder world_size arguments`; what its workers have returned, by rank.

    `strict`: a warning is an error.
    """
    ended = app.run(folder, world_size, *arguments, module=module, strict=strict)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return results(folder, world_size)


def results(folder: Path, world_size: int) -> list[Any]:
    """What the workers of a program have returned, by rank."""
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


def run_program_once(
    tmp_path_factory: pytest.TempPathFactory,
    module: str,
    world_size: int,
    *arguments: str,
    strict: bool = True,
) -> list[Any]:
    """As `run_program`, for all processes of this run of the suite together."""
    folder = made_once(
        tmp_path_factory,
        "_".join([module, *arguments]),
        lambda folder: run_program(module, folder, world_size, *arguments, strict=strict),
    )
    return results(folder, world_size)
