"""All-reduces of two workers over one network, by several transports in turn.

NCCL reads its environment once a process, so each transport of each round has new processes, on a
network of its own.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from threading import Timer

import torch

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from experiments.validation.nccl.transfers import MIB, Transfers
from experiments.validation.nccl.transports import NUM_WORKERS, Transport
from host.gpus import placement
from netsim.conditions.condition import NetworkCondition
from netsim.errors import ProbeError
from netsim.links.namespaces import Hub
from netsim.proof.temporary_network import run_workers

SIZES_MB = (1, 4, 16, 64, 256)
"""In 2**20 bytes."""

_START_S = 60.0
_SLOWER_THAN_EXPECTED = 4.0
_REFUSAL = re.compile(r"(?:Duplicate GPU detected|Multiple Ranks are using the same GPU).*")
_OF_TRANSPORTS = ("NCCL_", "BAGUA_NET_")

_Sized = list[tuple[int, float]]
"""MiB and seconds."""


class _RefusedError(RuntimeError):
    """NCCL does not take these workers; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured.

    Args:
        sizes_mb: ascending.
        rounds: at most so many.
        longest_s: what is expected to take longer, by the size before it, is left out.
        budget_s: a round after the first begins only if the longest before it would be over within.

    Raises `ValueError` where nothing is left to be measured.
    """

    sizes_mb: Sequence[int] = SIZES_MB
    rounds: int = 3
    longest_s: float = 40.0
    budget_s: float = inf

    def __post_init__(self) -> None:
        if self.rounds < 1 or not self.longest_s > 0:
            raise ValueError(
                "rounds must be at least 1, and the longest seconds of a size more than 0, "
                f"got {self.rounds} and {self.longest_s:g}"
            )


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One transport's part of a round. `may_leave_out` in the first one only, so that all rounds
    have the same sizes.
    """

    transport: Transport
    sizes_mb: Sequence[int]
    longest_s: float
    may_leave_out: bool

    @property
    def limit_s(self) -> float:
        """For one all-reduce."""
        return _START_S + _SLOWER_THAN_EXPECTED * self.longest_s


def measure(
    net: str,
    condition: NetworkCondition,
    transports: Sequence[Transport],
    extent: Extent,
    *,
    is_shared: bool = False,
) -> Iterator[Transfers]:
    """What there is after each round of all transports, over links of `condition`, named `net`.
    Where NCCL refuses two workers on one GPU, that.

    Raises:
        NamespaceError, ProbeError: the network cannot be made; a worker failed, or NCCL has used
            another transport.
    """
    began_s, longest_round_s = time.monotonic(), 0.0
    found = Transfers(net=net, shared_gpu=is_shared)
    for number in range(extent.rounds):
        round_began_s = time.monotonic()
        if number and round_began_s - began_s + longest_round_s > extent.budget_s:
            return
        for transport in transports:
            done = found.seconds.setdefault(transport.name, {})
            task = _Task(
                transport=transport,
                sizes_mb=tuple(done) or extent.sizes_mb,
                longest_s=extent.longest_s,
                may_leave_out=number == 0,
            )
            try:
                links, taken, left_out = _run(condition, task)
            except _RefusedError as error:
                yield Transfers(net=net, shared_gpu=is_shared, refused=str(error))
                return
            found = replace(found, links=links)
            for size_mb, seconds in taken:
                done.setdefault(size_mb, []).append(seconds)
            if left_out:
                found.left_out[transport.name] = dict(left_out)
        longest_round_s = max(longest_round_s, time.monotonic() - round_began_s)
        found = replace(found, rounds=number + 1)
        yield found


def _run(condition: NetworkCondition, task: _Task) -> tuple[str, _Sized, _Sized]:
    """The links' back end, what was taken, and what was left out."""
    rendezvous = os.memfd_create("relaxlab-rendezvous")
    transport = task.transport
    with tempfile.TemporaryDirectory() as folder:

        def work(hub: Hub, rank: int) -> tuple[_Sized, _Sized] | str:
            return _work(task, rank, f"/proc/self/fd/{rendezvous}", Path(folder))

        try:
            results = run_workers(condition, NUM_WORKERS, work)
        finally:
            os.close(rendezvous)
        for answer in results.values:
            if isinstance(answer, str):
                raise _RefusedError(answer)
        try:
            transport.check(Path(folder))
        except ValueError as error:
            raise ProbeError(f"{transport.name}: {error}") from error
    taken, left_out = results.values[0]
    return results.backend, taken, left_out


def _work(task: _Task, rank: int, rendezvous: str, folder: Path) -> tuple[_Sized, _Sized] | str:
    """What was taken, and what was left out; or what NCCL has refused."""
    try:
        for name in [name for name in os.environ if name.startswith(_OF_TRANSPORTS)]:
            del os.environ[name]
        os.environ.update(task.transport.environment(rank, folder))
        if task.transport.backend == "nccl":
            torch.cuda.set_device(placement(NUM_WORKERS).index(rank))
        torch.set_num_threads(1)
        with ExitStack() as stack:
            with _ended_after(_START_S, rank):
                joined = file_rendezvous(
                    rendezvous,
                    backend=task.transport.backend,
                    rank=rank,
                    world_size=NUM_WORKERS,
                    timeout_s=task.limit_s,
                )
                communicator = stack.enter_context(joined)
            sized = _sizes_in_turn(communicator, task, rank)
            with _ended_after(_START_S, rank):
                stack.close()
            return sized
    except RuntimeError as error:
        if refusal := _REFUSAL.search(str(error)):
            return f"NCCL refused two workers on one GPU: {refusal[0].strip()}"
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise ProbeError(f"{task.transport.name}, worker {rank}: {first}") from error


def _sizes_in_turn(
    communicator: ProcessGroupCommunicator, task: _Task, rank: int
) -> tuple[_Sized, _Sized]:
    taken: _Sized = []
    left_out: _Sized = []
    with _ended_after(task.limit_s, rank):
        _slowest_s(communicator, task.sizes_mb[0])  # connects
    for size_mb in task.sizes_mb:
        done_mb, done_s = taken[-1] if taken else (1, 0.0)
        expected_s = done_s * size_mb / done_mb
        if task.may_leave_out and expected_s > task.longest_s:
            left_out.append((size_mb, round(expected_s, 1)))
            continue
        with _ended_after(task.limit_s, rank):
            taken.append((size_mb, round(_slowest_s(communicator, size_mb), 6)))
    return taken, left_out


def _slowest_s(communicator: ProcessGroupCommunicator, size_mb: int) -> float:
    """Of one all-reduce, on the slower worker: both know it."""
    device = communicator.device
    x_w = torch.zeros(1, size_mb * MIB // 4, device=device)
    communicator.all_reduce_mean_(torch.zeros(1, 1, device=device))
    _finish(device)
    began_s = time.monotonic()
    communicator.all_reduce_mean_(x_w)
    _finish(device)
    own_w = torch.tensor([time.monotonic() - began_s], device=device)
    return float(communicator.all_gather(own_w).max())


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _ended_after(limit_s: float, rank: int) -> Iterator[None]:
    """End this process, which may wait within NCCL or CUDA, should the context last longer."""

    def end() -> None:
        other = NUM_WORKERS - 1 - rank
        sys.stderr.write(f"worker {rank} has waited {limit_s:g} s for worker {other}\n")
        sys.stderr.flush()
        os._exit(1)

    timer = Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
