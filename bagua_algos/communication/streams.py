"""`streams="auto"`: how many connections between each two workers pay, by one short measurement.

Every worker sends to its right neighbour and receives from its left one, as in a step of a ring
all-reduce, over 1 and 8 connections in turn. Connections have been idle before, so that TCP
begins with small windows: windows that stay open for the few packets of a short measurement would
be closed in training, by losses and by idleness. All workers hear of all times and choose by one
rule, so they agree.
"""

import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.process_group import MOST_STREAMS, ProcessGroupCommunicator
from bagua_algos.communication.stripes import Stripes

AUTO = "auto"
NumStreams = int | Literal["auto"]
"""1 to `MOST_STREAMS`, or "auto": measured."""

TRIED: tuple[int, ...] = (1, 8)
"""More numbers would leave less time for each, and losses come at random."""

BUDGET_S = 2.0
SENT_BYTES = 256 << 10
FEWEST_TURNS, MOST_TURNS = 3, 9
NUM_STEPS = 2
"""One after the other, as in a ring, where a later one finds a larger window, or a loss."""
IDLE_S = 0.35
"""Linux closes a window after one retransmission timeout, 0.2 s and a round trip."""
WORTH_IT = 0.9
"""Of the time by one stream: less must be left for several to be chosen. Several where one does
cost little; one where several would be three times as fast costs much.
"""
_LAZY = "TORCH_GLOO_LAZY_INIT"


@dataclass(frozen=True, kw_only=True)
class StreamTrial:
    """What was measured: the seconds in which `num_bytes` reach the neighbour twice, by each number
    of streams, the median of all workers and turns; and the number chosen.
    """

    streams: int
    num_bytes: int
    seconds: dict[int, float]
    num_turns: int


def check_streams(streams: object) -> None:
    """Raise `ValueError` unless `streams` is a `NumStreams`."""
    if streams != AUTO and not _is_number(streams):
        raise ValueError(f"streams must be 1 to {MOST_STREAMS}, or {AUTO}, got {streams!r}")


def with_streams(
    communicator: Communicator, streams: NumStreams
) -> tuple[Communicator, StreamTrial | None]:
    """The same workers, whose duplicates have as many streams; and how "auto" was decided. A
    collective call; "auto" takes 2 to 6 s.

    "auto" is 1 without a measurement where only one number is possible: for a single worker, and
    over NCCL. Raises `ValueError` for a number that cannot be.
    """
    check_streams(streams)
    trial = None
    if not isinstance(communicator, ProcessGroupCommunicator):
        if streams in (1, AUTO):
            return communicator, None
        raise ValueError(
            f"streams={streams} are of real workers, whose communicator is a "
            f"ProcessGroupCommunicator, not a {type(communicator).__name__}: leave streams at 1"
        )
    if streams == AUTO:
        trial = try_streams(communicator) if _may_have_several(communicator) else None
        streams = 1 if trial is None else trial.streams
    return communicator.with_transport(streams=streams), trial


def try_streams(workers: ProcessGroupCommunicator, budget_s: float = BUDGET_S) -> StreamTrial:
    """Measure; a collective call. Every number of streams has `FEWEST_TURNS` turns, however slow
    the network; others follow while they fit into `budget_s` seconds, besides connecting.
    """
    with connected_when_used():
        duplicates = [workers.with_transport(streams=number).duplicate() for number in TRIED]
    hops = [Hop(duplicate, SENT_BYTES) for duplicate in duplicates]
    for hop in hops:
        hop.seconds(MOST_STREAMS)  # connects all
    started_s = time.perf_counter()
    turns: list[list[list[float]]] = []
    while len(turns) < MOST_TURNS:
        began_s = time.perf_counter()
        time.sleep(IDLE_S)
        own = [sum(hop.seconds(SENT_BYTES) for _ in range(NUM_STEPS)) for hop in hops]
        ended_s = time.perf_counter()
        over_s = 2 * ended_s - began_s - started_s - budget_s  # after another such turn
        *times, overs_s = of_all(workers, [*own, over_s])
        turns.append(times)
        if len(turns) >= FEWEST_TURNS and max(overs_s) > 0:
            break
    for duplicate in duplicates:
        duplicate.close()
    medians = [statistics.median(itertools.chain(*times)) for times in zip(*turns, strict=True)]
    seconds = dict(zip(TRIED, medians, strict=True))
    return StreamTrial(
        streams=best(seconds), num_bytes=SENT_BYTES, seconds=seconds, num_turns=len(turns)
    )


def best(seconds: Mapping[int, float]) -> int:
    """The number of streams to take, from the seconds that each took."""
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest if seconds[fastest] <= WORTH_IT * seconds[1] else 1


class Hop:
    """Every worker sends to its right neighbour and receives from its left one, over all streams of
    `workers`, up to `most_bytes`.
    """

    def __init__(self, workers: ProcessGroupCommunicator, most_bytes: int) -> None:
        [rank] = workers.ranks
        self._right = (rank + 1) % workers.world_size
        self._left = (rank - 1) % workers.world_size
        self._stripes = Stripes(workers.stripes.groups, smallest_part_bytes=1)
        self._outgoing, self._incoming = torch.zeros(2, most_bytes, dtype=torch.uint8)

    def seconds(self, num_bytes: int) -> float:
        """How long it takes this worker, by its own clock; a collective call."""
        started_s = time.perf_counter()
        self._stripes.send_and_receive(
            {self._right: self._outgoing[:num_bytes]}, {self._left: self._incoming[:num_bytes]}
        )
        return time.perf_counter() - started_s


def of_all(workers: ProcessGroupCommunicator, numbers: list[float]) -> list[list[float]]:
    """Each of `numbers`, of every worker; a collective call."""
    own: Tensor = torch.tensor([numbers], dtype=torch.float64)
    return workers.all_gather(own)[0].T.tolist()


def _is_number(streams: object) -> TypeGuard[int]:
    return type(streams) is int and 1 <= streams <= MOST_STREAMS


def _may_have_several(workers: ProcessGroupCommunicator) -> bool:
    return workers.world_size > 1 and workers.device.type == "cpu"


@contextmanager
def connected_when_used() -> Iterator[None]:
    """Within, gloo's new groups connect two workers when one first sends to the other. Else each
    group connects all of them, one round trip after the other, for seconds over a far network.
    """
    before = os.environ.get(_LAZY)
    os.environ[_LAZY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LAZY]
        else:
            os.environ[_LAZY] = before
