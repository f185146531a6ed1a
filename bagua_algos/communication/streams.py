"""`streams="auto"`: how many connections between each two workers pay, by one short measurement.

Every worker sends to its right neighbour and receives from its left one, as in a step of a ring
all-reduce, over 1 and 8 connections in turn. Connections are new or have been idle, so that TCP
begins with small windows: windows that stay open for the few packets of a short measurement would
be closed in training, by losses and by idleness. A rest of less than a second closes them only in
part, so several streams are chosen where they pay over new connections, or over rested ones, whose
windows know of losses. All workers hear of all times and choose by one
rule, so they agree.
"""

import itertools
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.stripes import MOST_STREAMS, Stripes

AUTO = "auto"
NumStreams = int | Literal["auto"]
"""1 to `MOST_STREAMS`, or "auto": measured."""

SEVERAL = 8
"""Tried beside 1. More numbers would leave less time for each, and losses come at random."""

BUDGET_S = 1.7
"""Of the 2 s that it may take; the rest is for the workers to tell each other, before and after."""
MOST_TURNS = 9
SENT_BYTES = 256 << 10
"""From a small window several round trips by one connection, and under 1 % loss it loses some."""
IDLE_S = 0.35
"""Linux closes a window after one retransmission timeout, 0.2 s and a round trip."""
WORTH_IT = 0.9
"""Of the time by one stream: less must be left for several to be chosen. Several where one does
cost little; one where several would be three times as fast costs much.
"""
_LAZY = "TORCH_GLOO_LAZY_INIT"


@dataclass(frozen=True, kw_only=True)
class StreamTrial:
    """What was measured: the seconds in which `num_bytes` reach the neighbour, by each number of
    streams, and the number chosen. The seconds are medians of all workers: of the first turn where
    that was enough for several, else of all later ones, if there were any.
    """

    streams: int
    num_bytes: int
    seconds: dict[int, float]
    num_turns: int


def check_streams(streams: object, pieces: object = None) -> None:
    """Raise `ValueError` unless `streams` is a `NumStreams`, of which there are several, or may be,
    where `pieces` is True.
    """
    if pieces not in (None, True, False):
        raise ValueError(f"pieces must be true, false, or left out, got {pieces!r}")
    if pieces and streams == 1:
        raise ValueError(
            f"pieces=true is for several streams: give streams=2 to {MOST_STREAMS}, or {AUTO}, too"
        )
    if streams != AUTO and not _is_number(streams):
        raise ValueError(f"streams must be 1 to {MOST_STREAMS}, or {AUTO}, got {streams!r}")


def with_streams(
    communicator: Communicator, streams: NumStreams, pieces: bool | None = None
) -> tuple[Communicator, StreamTrial | None]:
    """The same workers, whose duplicates have as many streams; and how "auto" was decided. A
    collective call; "auto" takes up to 2 s.

    "auto" is 1 without a measurement where only one number is possible: for a single worker, and
    over NCCL. With `pieces` several streams take pieces of large messages as they become free, in
    place of equal parts: None stands for pieces where "auto" has found several to pay, and equal
    parts where a number is given. Raises `ValueError` for what cannot be.
    """
    check_streams(streams, pieces)
    trial = None
    if not isinstance(communicator, ProcessGroupCommunicator):
        if streams in (1, AUTO) and not pieces:
            return communicator, None
        raise ValueError(
            f"{'pieces=true' if pieces else f'streams={streams}'} are of real workers, whose "
            f"communicator is a ProcessGroupCommunicator, not a {type(communicator).__name__}: "
            f"leave {'pieces out' if pieces else 'streams at 1'}"
        )
    if streams == AUTO:
        trial = try_streams(communicator) if _may_have_several(communicator) else None
        streams = 1 if trial is None else trial.streams
        pieces = pieces is not False
    has_pieces = bool(pieces) and streams > 1
    return communicator.with_transport(streams=streams, pieces=has_pieces), trial


def try_streams(workers: ProcessGroupCommunicator, budget_s: float = BUDGET_S) -> StreamTrial:
    """Measure; a collective call. Each number of streams has one turn, however slow the network.
    Unless several pay already, others follow while they fit into `budget_s` seconds. The several
    connect during the first turn of one.
    """
    with connected_when_used():
        duplicate = workers.with_transport(streams=SEVERAL).duplicate()
    started_s = began_s = time.perf_counter()  # all have come
    one, several = Hop(workers, workers.stripes), Hop(workers, duplicate.stripes)
    turns: list[list[list[float]]] = []
    with ThreadPoolExecutor(SEVERAL) as pool:
        connecting = [pool.submit(several.greet, stream) for stream in range(SEVERAL)]
        while len(turns) < MOST_TURNS:
            by_one_s = one.seconds_after_rest()
            for connected in connecting:
                connected.result()
            own = [by_one_s, several.seconds_after_rest()]
            ended_s = time.perf_counter()
            over_s = 2 * ended_s - began_s - started_s - budget_s  # after another such turn
            began_s = ended_s
            *times, overs_s = of_all(workers, [*own, over_s])
            turns.append(times)
            if max(overs_s) > 0 or (len(turns) == 1 and _several_pay(_medians(turns))):
                break
    duplicate.close()
    return conclusion(turns)


def conclusion(turns: Sequence[Sequence[Sequence[float]]]) -> StreamTrial:
    """What the seconds of all turns say: of each turn, those of all workers by one stream and by
    several. The first turn counts by itself: its connections are new, the others' have rested.
    """
    new, *rested = turns
    seconds = _medians([new])
    if rested and not _several_pay(seconds):
        seconds = _medians(rested)
    streams = SEVERAL if _several_pay(seconds) else 1
    return StreamTrial(streams=streams, num_bytes=SENT_BYTES, seconds=seconds, num_turns=len(turns))


def _medians(turns: Sequence[Sequence[Sequence[float]]]) -> dict[int, float]:
    by_number = [itertools.chain(*times) for times in zip(*turns, strict=True)]
    return dict(zip((1, SEVERAL), map(statistics.median, by_number), strict=True))


def _several_pay(seconds: Mapping[int, float]) -> bool:
    return seconds[SEVERAL] <= WORTH_IT * seconds[1]


class Hop:
    """Every worker sends to its right neighbour and receives from its left one, by `stripes` of
    `workers`.
    """

    def __init__(self, workers: ProcessGroupCommunicator, stripes: Stripes) -> None:
        [rank] = workers.ranks
        self._groups = stripes.groups
        self._right = (rank + 1) % workers.world_size
        self._left = (rank - 1) % workers.world_size
        self._stripes = Stripes(stripes.groups, smallest_part_bytes=1)
        self._outgoing, self._incoming = torch.zeros(
            *(2, SENT_BYTES), dtype=torch.uint8, device="cpu"
        )
        self._ended_s = -math.inf

    def seconds_after_rest(self) -> float:
        """How long `SENT_BYTES` take, by this worker's own clock, after at least `IDLE_S` of
        idleness; a collective call.
        """
        time.sleep(max(0.0, self._ended_s + IDLE_S - time.perf_counter()))
        self.greet()  # else a neighbour's delay in what was before would count
        began_s = time.perf_counter()
        self._stripes.send_and_receive({self._right: self._outgoing}, {self._left: self._incoming})
        self._ended_s = time.perf_counter()
        return self._ended_s - began_s

    def greet(self, stream: int = 0) -> None:
        """Hear of both neighbours, over one stream, which connects it; a collective call."""
        stripes = Stripes([self._groups[stream]])
        neighbours = dict.fromkeys((self._left, self._right))
        stripes.send_and_receive(
            {peer: torch.zeros(1, dtype=torch.float32, device="cpu") for peer in neighbours},
            {peer: torch.empty(1, dtype=torch.float32, device="cpu") for peer in neighbours},
        )


def of_all(workers: ProcessGroupCommunicator, numbers: list[float]) -> list[list[float]]:
    """Each of `numbers`, of every worker; a collective call."""
    own: Tensor = torch.tensor([numbers], dtype=torch.float64, device="cpu")
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
