"""The rate of a link from samples of what its receiver's kernel has counted.

A process that the host keeps waiting reads the counter late, and sends late. So the rate is taken
in many slots of time, each from one sample to another. Those that nothing has disturbed agree with
each other, and disturbed ones do not: the third that agrees best counts.
"""

import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from netsim.conditions.units import mbit_per_s
from netsim.errors import BrokenProbeError
from netsim.links import counters

NUM_SLOTS = 15
_MIN_SLOTS = 3


@dataclass(frozen=True)
class ByteSample:
    """What the kernel had counted at a time."""

    at_s: float
    num_bytes: float


def sample() -> ByteSample:
    """All bytes that have come, by this process's clock."""
    return ByteSample(time.monotonic(), counters.bytes_received())


def steady_rate_mbit(samples: Sequence[ByteSample], sender: int) -> float:
    """10^6 bits per second, from the first arrival to the last.

    Raises:
        BrokenProbeError: if too little came from the worker `sender`.
    """
    changes = [later for earlier, later in pairwise(samples) if later.num_bytes > earlier.num_bytes]
    rates = []
    if changes:
        times_s = [change.at_s for change in changes]
        slot_s = (times_s[-1] - times_s[0]) / NUM_SLOTS
        bounds = [times_s[0] + slot * slot_s for slot in range(NUM_SLOTS)]
        marks = sorted({*(bisect_left(times_s, bound) for bound in bounds), len(changes) - 1})
        slots = [(changes[i], changes[j]) for i, j in pairwise(marks)]
        rates = [mbit_per_s((b.num_bytes - a.num_bytes) / (b.at_s - a.at_s)) for a, b in slots]
    if len(rates) < _MIN_SLOTS:
        raise BrokenProbeError(
            f"What came from worker {sender} is too little to measure a rate: free the host's "
            f"processors, or choose a higher rate_mbit."
        )
    return _densest_third(sorted(rates))


def _densest_third(values: list[float]) -> float:
    """Mean of the third of the sorted, positive values with the least relative spread."""
    size = max(_MIN_SLOTS, len(values) // 3)
    thirds = [values[begin : begin + size] for begin in range(len(values) - size + 1)]
    return statistics.mean(min(thirds, key=lambda third: third[-1] / third[0]))
