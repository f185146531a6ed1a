"""Equal parts beside pieces that streams take as they become free:
`python -m experiments.bench_systems pieces`.
"""

import multiprocessing
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import count, product
from multiprocessing.synchronize import Barrier

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bagua_algos.communication.pieces import Pieces
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from experiments.validation.collectives import LINGER_S, run_gloo_workers
from host import markdown
from host.errors import Failure
from netsim.conditions.presets import read_condition
from netsim.links import tcp

NETS = ("lossy", "wan")
NUM_WORKERS = 4
NUM_STREAMS = 8
OPERATIONS = ("exchange", "all_to_all")
SIZES = (200_000, 400_000, 800_000, 1_600_000)
"""Bytes that a worker hands in: to its right neighbour, or in equal shares to all workers."""

LIMIT_S = 30
"""Of every wait, and of every operation; then the worker is killed."""

WAYS = {
    "equal parts": None,
    "pieces of 16 kB": 16_000,
    "pieces of 32 kB": 32_000,
    "pieces of 64 kB": 64_000,
}
"""And the bytes of a piece: of any message, however small."""


def measure(net: str, rounds: int) -> dict[tuple[str, int, str], list[float]]:
    """The seconds of every operation, size and way in each round, after one round that opens
    connections: from when the last worker begins until the last is done.

    Raises:
        Failure: something arrived otherwise than it was sent.
        NamespaceError: the network cannot be made, or a worker has died.
    """
    cases = list(product(OPERATIONS, SIZES, WAYS))
    context = multiprocessing.get_context("fork")
    together = context.Barrier(NUM_WORKERS, timeout=LIMIT_S)
    shape = (NUM_WORKERS, 1 + rounds, len(cases), 2)
    times_s = np.frombuffer(context.RawArray("d", int(np.prod(shape)))).reshape(shape)

    def work(communicator: ProcessGroupCommunicator) -> list[str]:
        return _take_rounds(communicator, together, times_s[communicator.ranks[0]])

    results = run_gloo_workers(read_condition(net), NUM_WORKERS, work, limit_s=LIMIT_S)
    if wrong := {way for ways in results.values for way in ways}:
        raise Failure(f"{net}: not all that was sent has arrived by {', '.join(sorted(wrong))}")
    begins_s, ends_s = np.moveaxis(times_s.max(0), -1, 0)
    return dict(zip(cases, (ends_s - begins_s)[1:].T.tolist(), strict=True))


def table(measured: Mapping[str, Mapping[tuple[str, int, str], Sequence[float]]]) -> str:
    """By network what `measure` has found, in ms: a row for each operation and size, a column for
    each way, with the median, the least and the greatest.
    """
    rows = [
        [
            *(net, operation.replace("_", "-"), f"{num_bytes / 1000:,.0f}"),
            *(_cell(seconds[operation, num_bytes, way]) for way in WAYS),
        ]
        for net, seconds in measured.items()
        for operation, num_bytes in product(OPERATIONS, SIZES)
    ]
    return markdown.table(["network", "operation", "kB", *WAYS], rows, "llr" + "r" * len(WAYS))


def _cell(seconds: Sequence[float]) -> str:
    middle, least, most = (1000 * of(seconds) for of in (statistics.median, min, max))
    return f"{middle:.0f} ({least:.0f} to {most:.0f})"


def _take_rounds(
    communicator: ProcessGroupCommunicator, together: Barrier, times_s: NDArray[np.float64]
) -> list[str]:
    """The ways by which something arrived otherwise than it was sent; `times_s[round, case]` has
    when this worker began and when it was done. The ways change places from round to round.
    """
    workers = communicator.with_transport(streams=NUM_STREAMS).duplicate()
    tcp.share_unsent(NUM_STREAMS)  # as a run does
    by_way = {
        name: Pieces(workers.stripes.groups, num_bytes, 0) if num_bytes else workers.stripes
        for name, num_bytes in WAYS.items()
    }
    wrong: set[str] = set()
    seeds = count()  # else what an operation left in memory would pass for what the next one brings
    for turn, own_s in enumerate(times_s):
        names = [*WAYS][turn % len(WAYS) :] + [*WAYS][: turn % len(WAYS)]
        for case, (operation, num_bytes) in enumerate(product(OPERATIONS, SIZES)):
            for name in names:
                signal.alarm(LIMIT_S + 1)  # its default is to kill
                workers.stripes = by_way[name]
                took = _time(workers, together, operation, num_bytes, next(seeds))
                own_s[case * len(WAYS) + [*WAYS].index(name)] = took[:2]
                wrong |= set() if took[2] else {name}
    together.wait()
    time.sleep(LINGER_S)  # what is on the way still has to arrive
    signal.alarm(0)
    return sorted(wrong)


def _time(
    workers: ProcessGroupCommunicator, together: Barrier, operation: str, num_bytes: int, seed: int
) -> tuple[float, float, bool]:
    """When this worker began, when it was done, and whether all is there bit for bit."""
    [rank] = workers.ranks
    sent_N = [_numbers(seed, sender, num_bytes) for sender in range(NUM_WORKERS)]
    right = [(sender + 1) % NUM_WORKERS for sender in range(NUM_WORKERS)]
    together.wait()
    began_s = time.monotonic()
    if operation == "exchange":
        y = workers.exchange(sent_N[rank][None], right)[0]
        done_s, wanted = time.monotonic(), sent_N[right.index(rank)]
    else:
        y = workers.all_to_all(sent_N[rank].view(1, NUM_WORKERS, -1)).flatten()
        done_s = time.monotonic()
        wanted = torch.cat([x.view(NUM_WORKERS, -1)[rank] for x in sent_N])
    return began_s, done_s, torch.equal(y, wanted)


def _numbers(seed: int, sender: int, num_bytes: int) -> Tensor:
    """Integers, which are equal only bit for bit."""
    drawn = torch.Generator().manual_seed(NUM_WORKERS * seed + sender)
    return torch.empty(num_bytes // 4, dtype=torch.int32).random_(generator=drawn)
