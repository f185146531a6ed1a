"""All-reduces of real workers over one network: by pattern, size and number of streams; and what
the cost model and a closed formula say of them.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from bagua_algos.communication.halving_doubling import largest_power
from bagua_algos.communication.patterns import EVERY_SIZE, all_reduce_s
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from host import markdown
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.units import bytes_per_s
from netsim.links import tcp
from netsim.links.namespaces import Hub
from netsim.links.netlink import INTERFACE
from netsim.proof.temporary_network import Results, run_workers
from netsim.timeline.cost_model import CostModel, PlainOperation
from netsim.timeline.lanes import steady_s
from netsim.timeline.transport import GLOO

PATTERNS = {"ring": 0, "halving_doubling": EVERY_SIZE}
"""With the size up to which all-reduces go by halving and doubling."""

STREAMS = (1, 2, 4, 8, 16)
SIZES = (4_000, 100_000, 400_000, 1_600_000)
LIMIT_S = 300.0
LINGER_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The seconds of one all-reduce on the slowest worker: least, median and most."""

    pattern: str
    num_bytes: int
    streams: int
    seconds: tuple[float, float, float]


def run_gloo_workers(
    condition: NetworkCondition,
    num_workers: int,
    work: Callable[[ProcessGroupCommunicator], Any],
    *,
    limit_s: float,
) -> Results:
    """What `work` returns on each of so many gloo workers of one thread over a network, none of
    whom waits for another longer than `limit_s`. Raises `NamespaceError` where the network cannot
    be made.
    """
    rendezvous = os.memfd_create("relaxlab-rendezvous")

    def join(hub: Hub, rank: int) -> Any:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
        with file_rendezvous(
            f"/proc/self/fd/{rendezvous}",
            backend="gloo",
            rank=rank,
            world_size=num_workers,
            timeout_s=limit_s,
        ) as communicator:
            return work(communicator)

    try:
        return run_workers(condition, num_workers, join)
    finally:
        os.close(rendezvous)


def measure(
    condition: NetworkCondition, num_workers: int, sizes: Sequence[int], *, num_repeats: int
) -> tuple[str, list[Timed]]:
    """The back end of the links, and every pattern and size by every number of streams. Each
    operation is done once beforehand, so that connections are there.

    Raises `NamespaceError` where the network cannot be made.
    """
    cases = list(product(STREAMS, PATTERNS, sizes))

    def work(communicator: ProcessGroupCommunicator) -> list[list[float]]:
        times = list(_times(communicator, sizes, num_repeats))
        own = torch.tensor([times], dtype=torch.float64)
        slowest = communicator.all_gather(own)[0].amax(0)
        time.sleep(LINGER_S)  # what is on the way still has to arrive
        return [_spread(seconds) for seconds in slowest.tolist()]

    results = run_gloo_workers(condition, num_workers, work, limit_s=LIMIT_S)
    timed = [
        Timed(pattern=pattern, num_bytes=num_bytes, streams=streams, seconds=(*seconds,))
        for (streams, pattern, num_bytes), seconds in zip(cases, results.values[0], strict=True)
    ]
    return results.backend, timed


def theory_s(condition: NetworkCondition, num_workers: int, pattern: str, num_bytes: int) -> float:
    """Steps times delay plus bytes over the rate, of the first two workers' path: what is left
    where windows are open and nothing is lost, whatever the number of streams.
    """
    path = condition.path(0, 1)
    delay_s = path.delay_ms / 1000
    per_byte_s = 1 / bytes_per_s(path.rate_mbit) if path.rate_mbit else 0.0
    if pattern == "ring":
        steps, sent = 2 * (num_workers - 1), 2 * (num_workers - 1) / num_workers
    else:
        power = largest_power(num_workers)
        is_beyond = power < num_workers
        steps = 2 * (power.bit_length() - 1) + 2 * is_beyond
        sent = 2 * (power - 1) / power + 2 * is_beyond
    return steps * delay_s + sent * num_bytes * per_byte_s


def predicted_s(condition: NetworkCondition, num_workers: int, timed: Timed, backend: str) -> float:
    """What the cost model says of one of many all-reduces, one after the other: it finds windows as
    the one before it and the time since have left them.
    """
    transport = replace(GLOO, streams=timed.streams, halving_doubling_bytes=PATTERNS[timed.pattern])
    model = CostModel(condition, num_workers, transport, backend=backend)
    operation = PlainOperation(
        name="all_reduce_mean", num_bytes=timed.num_bytes, ranks=tuple(range(num_workers))
    )
    return steady_s(model, operation)


def summary(
    condition: NetworkCondition, num_workers: int, timed: Sequence[Timed], backend: str
) -> str:
    """Two sentences: how far the cost model and the closed formula are off the medians. No constant
    of either was fitted to these measurements.
    """
    errors: dict[str, list[float]] = {"The cost model": [], "The closed formula": []}
    for one in timed:
        median_s = one.seconds[1]
        theory = theory_s(condition, num_workers, one.pattern, one.num_bytes)
        errors["The cost model"].append(
            predicted_s(condition, num_workers, one, backend) / median_s - 1
        )
        errors["The closed formula"].append(theory / median_s - 1)
    return " ".join(
        f"{name} is off by {100 * statistics.fmean(map(abs, values)):.0f} % on the mean, "
        f"{100 * max(values, key=abs):+.0f} % at worst."
        for name, values in errors.items()
    )


def table(
    condition: NetworkCondition, num_workers: int, timed: Sequence[Timed], backend: str
) -> str:
    """A row for each pattern and size, a column for each number of streams: the median in ms, the
    least and the most, and what the cost model predicts.
    """
    by_case = {(t.num_bytes, t.pattern, t.streams): t for t in timed}
    keys = dict.fromkeys((t.num_bytes, t.pattern) for t in timed)
    header = ["kB", "pattern", "theory", *(f"k = {streams}" for streams in STREAMS)]
    rows = [
        [
            f"{num_bytes / 1000:g}",
            pattern,
            f"{1000 * theory_s(condition, num_workers, pattern, num_bytes):.0f}",
            *(
                _cell(one, predicted_s(condition, num_workers, one, backend))
                for one in (by_case[num_bytes, pattern, streams] for streams in STREAMS)
            ),
        ]
        for num_bytes, pattern in sorted(keys, key=lambda key: key[0])
    ]
    return markdown.table(header, rows, "rl" + "r" * (len(header) - 2))


def _cell(timed: Timed, predicted: float) -> str:
    low, middle, high = (1000 * seconds for seconds in timed.seconds)
    return f"{middle:.0f} ({low:.0f} to {high:.0f}) ~{1000 * predicted:.0f}"


def _spread(seconds: Sequence[float]) -> list[float]:
    """In microseconds: a pipe takes little at once."""
    return [round(of(seconds), 6) for of in (min, statistics.median, max)]


def _times(
    communicator: ProcessGroupCommunicator, sizes: Sequence[int], num_repeats: int
) -> Iterator[list[float]]:
    for streams, limit in product(STREAMS, PATTERNS.values()):
        workers = communicator.with_transport(
            streams=streams, halving_doubling_bytes=limit
        ).duplicate()
        tcp.share_unsent(streams)  # as a run does
        for num_bytes in sizes:
            seconds = [all_reduce_s(workers, num_bytes) for _ in range(1 + num_repeats)]
            yield seconds[1:]
        workers.close()
