"""Measured operations of gloo: the operations, the networks, and a table as a file.

Each round is over networks made anew, and has a median of its repeats. The round whose median is
least counts: a busy host disturbs, and makes nothing faster. The slowest tells by how much.
"""

import csv
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path

from host.errors import UserError
from host.output import reason
from netsim.conditions.condition import NetworkCondition
from netsim.validation import gloo

SIZES = (40_000, 400_000, 1_600_000, 10_000_000)
MESSAGE_OPERATIONS = ("all_to_all", "all_reduce_mean")
_LIMIT_S = 400
_SECONDS = ("seconds", "most_seconds")
_LEAST = {"num_processors": 1, "num_workers": 2, "num_bytes": 1} | dict.fromkeys(_SECONDS, 1e-6)
"""That can have been measured."""
_LONG_QUEUE_MS = NetworkCondition.queue_ms


@dataclass(frozen=True, kw_only=True)
class UniformNetwork:
    """Links that are all alike; the constants are fitted on some, and tried on the others."""

    rate_mbit: float | None = None
    delay_ms: float = 0
    is_fitted: bool = True
    queue_ms: float = _LONG_QUEUE_MS

    @property
    def condition(self) -> NetworkCondition:
        """The `NetworkCondition` with this rate, delay and queue on every link."""
        return NetworkCondition(
            rate_mbit=self.rate_mbit, delay_ms=self.delay_ms, queue_ms=self.queue_ms
        )

    def __str__(self) -> str:
        rate = "unshaped" if self.rate_mbit is None else f"{self.rate_mbit:g} Mbit/s"
        delay = f", {self.delay_ms:g} ms" if self.delay_ms else ""
        queue = f", queue {self.queue_ms:g} ms" if self.queue_ms != _LONG_QUEUE_MS else ""
        return rate + delay + queue


NETWORKS = (
    UniformNetwork(),
    UniformNetwork(rate_mbit=1000, delay_ms=1),
    UniformNetwork(rate_mbit=100, delay_ms=1),
    UniformNetwork(rate_mbit=200, delay_ms=5),
    UniformNetwork(rate_mbit=1000, is_fitted=False),
    UniformNetwork(rate_mbit=100, is_fitted=False),
    UniformNetwork(rate_mbit=50, delay_ms=10, is_fitted=False),
)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One operation over one network.

    Args:
        rate_mbit: of every link; None: unshaped.
        delay_ms: of every path.
        is_fitted: whether the constants are fitted on it.
        backend: that shaped the links.
        num_processors: of the host that all workers share.
        num_workers: how many took part.
        name: of the operation.
        num_bytes: that each worker handed in.
        seconds: median of the least disturbed round.
        most_seconds: median of the most disturbed one.
        queue_ms: what the queue of every link holds, in time at the rate.
    """

    rate_mbit: float | None
    delay_ms: float
    is_fitted: bool
    backend: str
    num_processors: int
    num_workers: int
    name: str
    num_bytes: int
    seconds: float
    most_seconds: float
    queue_ms: float = _LONG_QUEUE_MS

    @property
    def network(self) -> UniformNetwork:
        """Over which it was measured."""
        return UniformNetwork(
            rate_mbit=self.rate_mbit,
            delay_ms=self.delay_ms,
            is_fitted=self.is_fitted,
            queue_ms=self.queue_ms,
        )


MESSAGE_WORKERS = (2, 4, 8, 16, 32)
"""With so many, operations of few bytes tell what messages cost. 64 did not connect on 2 cores that
other programs shared: gloo gives up a connection after four attempts.
"""


def measure_messages(
    *,
    worker_counts: Sequence[int] = MESSAGE_WORKERS,
    num_rounds: int = 3,
    num_repeats: int = 9,
    report: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure operations of few bytes over unshaped links; every other number of workers is held
    out. Takes a minute or two.

    Raises:
        NamespaceError: if a network cannot be made, or a worker fails.
    """
    times: dict[tuple[int, str, int], list[float]] = {}
    backend = ""
    for index, num_workers in product(range(num_rounds), worker_counts):
        report(f"round {index + 1} of {num_rounds}: few bytes of {num_workers} workers")
        cases = [(name, 2 * gloo.ELEMENT_BYTES * num_workers) for name in MESSAGE_OPERATIONS]
        backend, times_s = gloo.seconds(
            UniformNetwork().condition,
            num_workers,
            [[[case]] for case in cases],
            num_repeats=num_repeats,
            limit_s=_LIMIT_S,
        )
        for case, seconds in zip(cases, times_s, strict=True):
            times.setdefault((num_workers, *case), []).append(statistics.median(seconds))
    return [
        Measurement(
            rate_mbit=None,
            delay_ms=0,
            is_fitted=worker_counts.index(num_workers) % 2 == 0,
            backend=backend,
            num_processors=os.cpu_count() or 1,
            num_workers=num_workers,
            name=name,
            num_bytes=num_bytes,
            seconds=min(medians),
            most_seconds=max(medians),
        )
        for (num_workers, name, num_bytes), medians in times.items()
    ]


QUEUES = (
    *(UniformNetwork(rate_mbit=50, delay_ms=10, queue_ms=ms) for ms in (2, 5, 10, 20, 50)),
    *(
        UniformNetwork(rate_mbit=100, delay_ms=25, queue_ms=ms, is_fitted=False)
        for ms in (5, 10, 20)
    ),
)
"""Networks with short queues. The constants of `netsim.timeline.tcp.short_queues` were chosen by
those that are fitted; earlier measurements of the others were in view, so none is truly held out.
"""

QUEUE_OPERATIONS = {
    2: [("exchange", size) for size in (100_000, 400_000, 1_600_000, 6_400_000)],
    4: [(name, size) for name in MESSAGE_OPERATIONS for size in (400_000, 1_600_000, 6_400_000)],
}
"""By number of workers."""


def measure_queues(
    *,
    networks: Sequence[UniformNetwork] = QUEUES,
    num_rounds: int = 2,
    num_repeats: int = 5,
    report: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure operations over networks with short queues. Takes a quarter of an hour.

    Raises:
        NamespaceError: if a network cannot be made, or a worker fails.
    """
    times: dict[tuple[UniformNetwork, int, str, int], list[float]] = {}
    backends: dict[UniformNetwork, str] = {}
    for index, network, num_workers in product(range(num_rounds), networks, QUEUE_OPERATIONS):
        report(f"round {index + 1} of {num_rounds}: {network}, {num_workers} workers")
        cases = QUEUE_OPERATIONS[num_workers]
        backends[network], times_s = gloo.seconds(
            network.condition,
            num_workers,
            [[[case]] for case in cases],
            num_repeats=num_repeats,
            limit_s=_LIMIT_S,
        )
        for case, seconds in zip(cases, times_s, strict=True):
            key = (network, num_workers, *case)
            times.setdefault(key, []).append(statistics.median(seconds))
    return [
        Measurement(
            **asdict(network),
            backend=backends[network],
            num_processors=os.cpu_count() or 1,
            num_workers=num_workers,
            name=name,
            num_bytes=num_bytes,
            seconds=min(medians),
            most_seconds=max(medians),
        )
        for (network, num_workers, name, num_bytes), medians in times.items()
    ]


def measure(
    num_workers: int,
    *,
    num_rounds: int = 3,
    num_repeats: int = 5,
    report: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure every operation over every network of `NETWORKS`; takes some ten minutes.

    Raises:
        NamespaceError: if a network cannot be made, or a worker fails.
    """
    operations = _operations(num_workers)
    rounds: list[list[tuple[str, list[float]]]] = []
    for index in range(num_rounds):
        rounds.append([])
        for network in NETWORKS:
            report(f"round {index + 1} of {num_rounds}: {network}")
            backend, times_s = gloo.seconds(
                network.condition,
                num_workers,
                [[[operation]] for operation in operations],
                num_repeats=num_repeats,
                limit_s=_LIMIT_S,
            )
            rounds[-1].append((backend, [statistics.median(times) for times in times_s]))
    return [
        Measurement(
            rate_mbit=network.rate_mbit,
            delay_ms=network.delay_ms,
            is_fitted=network.is_fitted,
            backend=rounds[0][n][0],
            num_processors=os.cpu_count() or 1,
            num_workers=num_workers,
            name=name,
            num_bytes=num_bytes,
            seconds=min(medians[n][1][i] for medians in rounds),
            most_seconds=max(medians[n][1][i] for medians in rounds),
        )
        for n, network in enumerate(NETWORKS)
        for i, (name, num_bytes) in enumerate(operations)
    ]


def _operations(num_workers: int) -> list[tuple[str, int]]:
    """An all-gather's workers hand in their share."""
    sizes = {
        name: [size // num_workers if name == "all_gather" else size for size in SIZES]
        for name in gloo.OPERATIONS
    }
    sizes["all_reduce_mean"].insert(0, gloo.ELEMENT_BYTES)
    return [(name, size) for name in gloo.OPERATIONS for size in sizes[name]]


def write(path: Path, measurements: Sequence[Measurement]) -> None:
    """Write them as CSV, seconds to the microsecond."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Measurement)])
        for measurement in measurements:
            values = asdict(measurement)
            values |= {name: f"{values[name]:.6f}" for name in _SECONDS}
            writer.writerow(["" if value is None else value for value in values.values()])


def read(path: Path) -> list[Measurement]:
    """What `write` has written. Raises `UserError` where that is not what a file holds."""
    try:
        with path.open(newline="") as file:
            measurements = [_from_words(words) for words in csv.DictReader(file, restval="")]
        if not measurements:
            raise ValueError("it has no rows")
    except (OSError, KeyError, ValueError, csv.Error) as error:
        missing = f"it has no column {error}" if isinstance(error, KeyError) else None
        why = missing or (reason(error) if isinstance(error, OSError) else str(error))
        raise UserError(
            f"{path} cannot be read as measurements ({why}): give a CSV file that `python -m "
            "netsim calibrate` has written"
        ) from error
    return measurements


def _from_words(words: dict[str, str]) -> Measurement:
    measurement = Measurement(
        rate_mbit=float(words["rate_mbit"]) if words["rate_mbit"] else None,
        delay_ms=float(words["delay_ms"]),
        is_fitted=words["is_fitted"] == "True",
        backend=words["backend"],
        num_processors=int(words["num_processors"]),
        num_workers=int(words["num_workers"]),
        name=words["name"],
        num_bytes=int(words["num_bytes"]),
        queue_ms=float(words.get("queue_ms", _LONG_QUEUE_MS)),
        **{name: float(words[name]) for name in _SECONDS},
    )
    for name, least in _LEAST.items():
        if not least <= getattr(measurement, name) < math.inf:
            raise ValueError(f"{name} is {words[name]}")
    return measurement
