"""What messages and bytes take of a host's processors: of all workers there, and of the switch.

    python -m netsim calibrate --processor

Processor time, as the kernel counts it for each process, so that other programs disturb it little.
Each network's times are fitted by a number for each message and one for each byte, which count as
the cost model counts them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from netsim.conditions.condition import NetworkCondition
from netsim.timeline.cost_model import CostModel, PlainOperation
from netsim.validation import gloo
from netsim.validation.gloo_measurements import UniformNetwork

NETWORKS = (
    UniformNetwork(),
    UniformNetwork(rate_mbit=1000, delay_ms=1),
    UniformNetwork(rate_mbit=200, delay_ms=5),
)
WORKERS = (2, 4, 8)
OPERATIONS = ("all_reduce_mean", "all_to_all", "all_gather", "exchange")
SIZES = (4_000, 400_000, 1_600_000)
NUM_REPEATS = 10
_LIMIT_S = 300


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Processor seconds of one operation, and what it sends: of all workers together."""

    network: UniformNetwork
    backend: str
    num_messages: float
    num_bytes: float
    seconds: float


def measure(report: Callable[[str], None] = lambda line: None) -> Iterator[Taken]:
    """Every operation, of every number of workers, over every network. Takes some three minutes.

    Raises:
        NamespaceError: if a network cannot be made, or a worker fails.
    """
    for network in NETWORKS:
        for num_workers in WORKERS:
            report(f"{network}, {num_workers} workers")
            operations = [(name, size) for name in OPERATIONS for size in SIZES]
            backend, times_s = gloo.processor_seconds(
                network.condition,
                num_workers,
                operations,
                num_repeats=NUM_REPEATS,
                limit_s=_LIMIT_S,
            )
            for (name, size), seconds in zip(operations, times_s, strict=True):
                num_messages, num_bytes = sent(network.condition, num_workers, name, size)
                yield Taken(
                    network=network,
                    backend=backend,
                    num_messages=num_messages,
                    num_bytes=num_bytes,
                    seconds=seconds,
                )


def sent(
    condition: NetworkCondition, num_workers: int, name: str, num_bytes: int
) -> tuple[float, float]:
    """Messages and bytes of all workers together, as the cost model counts them."""
    model = CostModel(condition, num_workers)
    shifted = (*range(1, num_workers), 0)
    operation = PlainOperation(
        name=name,
        num_bytes=num_bytes,
        ranks=tuple(range(num_workers)),
        peers=shifted if name == "exchange" else None,
    )
    cost = model.cost(operation, model.at(0)[0])
    return cost.num_messages, float(cost.sent_bytes.sum())


def fit(taken: Sequence[Taken]) -> tuple[float, float]:
    """Processor seconds a message and a byte, by the least squares of relative errors."""
    from scipy.optimize import nnls  # takes a third of a second

    seconds = np.array([one.seconds for one in taken])
    counts = np.array([[one.num_messages, one.num_bytes] for one in taken])
    (message_s, byte_s), _ = nnls(counts / seconds[:, None], np.ones(len(taken)))
    return float(message_s), float(byte_s)


def lines(taken: Sequence[Taken], num_processors: int = os.cpu_count() or 1) -> Iterator[str]:
    """What came of it, for each network, and the constants of `Transport` for each back end."""
    for network in dict.fromkeys(one.network for one in taken):
        message_s, byte_s = fit([one for one in taken if one.network == network])
        yield f"{network}: {1e6 * message_s:.0f} us a message, {1e9 * byte_s:.2f} ns a byte"
    for backend in dict.fromkeys(one.backend for one in taken):
        own = [one for one in taken if one.backend == backend]
        message_s, byte_s = fit(own)
        off = [(message_s * o.num_messages + byte_s * o.num_bytes) / o.seconds - 1 for o in own]
        name = "switch" if backend == "switch" else "local"
        yield (
            f"{name}_messages_per_s: {num_processors / message_s:.3g}, "
            f"{name}_bytes_per_s: {num_processors / byte_s:.3g}; half of the times are within "
            f"{100 * float(np.median(np.abs(off))):.0f} %"
        )
