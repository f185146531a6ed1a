"""The pattern of all-reduces: gloo's ring, directly, or recursive halving and doubling.

A ring of N workers takes 2 (N - 1) steps of a N-th of the bytes each, halving and doubling fewer
but larger ones (`halving_doubling.py`). Which is faster depends on delays, on windows and losses,
and on the processors. So "auto" times both, by size. Directly (`direct.py`), sums are bit for bit
those of halving and doubling.
"""

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Literal

import torch

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.streams import connected_when_used, of_all

Pattern = Literal["ring", "halving_doubling", "direct", "auto"]
"""Of all-reduces: gloo's own ring, halving and doubling, directly, or by size ring or halving and
doubling, whatever a measurement says is faster.
"""

PATTERNS = ("ring", "halving_doubling", "direct", "auto")
EVERY_SIZE = 1 << 62
TRIED_BYTES = (4 << 10, 32 << 10, 256 << 10, 2 << 20)
NUM_TURNS = 3
WORTH_IT = 0.8
"""Of the ring's time: less must be left for another pattern."""


@dataclass(frozen=True, kw_only=True)
class PatternTrial:
    """What was measured: the median seconds of an all-reduce by its bytes, for either pattern; and
    up to how many bytes all-reduces go by halving and doubling.
    """

    halving_doubling_bytes: int
    ring_seconds: dict[int, float]
    halving_doubling_seconds: dict[int, float]


def check_pattern(pattern: object) -> None:
    """Raise `ValueError` unless `pattern` is a `Pattern`."""
    if pattern not in PATTERNS:
        raise ValueError(f"pattern must be one of {', '.join(PATTERNS)}, got {pattern!r}")


def with_pattern(
    communicator: Communicator, pattern: Pattern
) -> tuple[Communicator, PatternTrial | None]:
    """The same workers, whose duplicates all-reduce by `pattern`; and how "auto" was decided. A
    collective call; "auto" takes 8 all-reduces of each size up to the first that does not pay.

    "auto" is the ring without a measurement where there is no choice: up to two workers, and over
    NCCL, which has patterns of its own. Raises `ValueError` for one that cannot be.
    """
    check_pattern(pattern)
    if not isinstance(communicator, ProcessGroupCommunicator):
        if pattern in ("ring", "auto"):
            return communicator, None
        raise ValueError(
            f"pattern={pattern} is of real workers, whose communicator is a "
            f"ProcessGroupCommunicator, not a {type(communicator).__name__}: leave it at ring"
        )
    if pattern != "auto":
        limit = EVERY_SIZE if pattern == "halving_doubling" else 0
        is_direct = pattern == "direct"
        with_it = communicator.with_transport(halving_doubling_bytes=limit, fixed_order=is_direct)
        return with_it, None
    if communicator.world_size <= 2 or communicator.device.type != "cpu":
        return communicator.with_transport(halving_doubling_bytes=0, fixed_order=False), None
    trial = try_patterns(communicator)
    limit = trial.halving_doubling_bytes
    return communicator.with_transport(halving_doubling_bytes=limit, fixed_order=False), trial


def try_patterns(workers: ProcessGroupCommunicator) -> PatternTrial:
    """Time both, from small sizes up to the first at which halving and doubling does not pay; a
    collective call.
    """
    with connected_when_used():
        duplicates = [
            workers.with_transport(halving_doubling_bytes=limit, fixed_order=False).duplicate()
            for limit in (0, EVERY_SIZE)
        ]
    ring: dict[int, float] = {}
    other: dict[int, float] = {}
    limit = 0
    for num_bytes in TRIED_BYTES:
        turns = [[all_reduce_s(way, num_bytes) for way in duplicates] for _ in range(1 + NUM_TURNS)]
        times = of_all(workers, list(itertools.chain(*turns[1:])))  # the first connects
        ring[num_bytes], other[num_bytes] = (
            statistics.median(itertools.chain(*times[way::2])) for way in (0, 1)
        )
        if other[num_bytes] > WORTH_IT * ring[num_bytes]:
            break
        limit = num_bytes
    for duplicate in duplicates:
        duplicate.close()
    return PatternTrial(
        halving_doubling_bytes=limit, ring_seconds=ring, halving_doubling_seconds=other
    )


def all_reduce_s(workers: Communicator, num_bytes: int) -> float:
    """How long one all-reduce takes this worker, by its own clock; a collective call."""
    x_w = torch.zeros(1, num_bytes // 4, dtype=torch.float32, device="cpu")
    started_s = time.perf_counter()
    workers.all_reduce_mean_(x_w)
    return time.perf_counter() - started_s
