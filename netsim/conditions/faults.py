"""Links that go down: once, several at a time (a partition), or again and again (flapping)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netsim.conditions.link import check_keys, check_number
from netsim.conditions.periods import SHORTEST_S, period_number


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Workers whose links lose everything, both ways.

    Args:
        workers: ranks. Together they are cut off from the rest and from each other.
        at_s: since training began.
        for_s: how long.
        every_s: the time from one outage's begin to the next; None: it happens once.

    Raises:
        ValueError: for ranks or times that cannot be.
    """

    workers: tuple[int, ...]
    at_s: float
    for_s: float
    every_s: float | None = None

    def __post_init__(self) -> None:
        for rank in self.workers:
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
                raise ValueError(f"A fault's workers are ranks from 0 up, not {rank!r}.")
        if not self.workers:
            raise ValueError("A fault needs a worker: name ranks in worker or workers.")
        check_number("at_s", self.at_s)
        check_number("for_s", self.for_s)
        if self.for_s == 0:
            raise ValueError("A fault of for_s=0 never happens: choose more, or leave it out.")
        if self.every_s is not None:
            check_number("every_s", self.every_s)
            if self.every_s < SHORTEST_S:
                raise ValueError(
                    f"A link that fails every every_s={self.every_s} changes too often: choose at "
                    f"least {SHORTEST_S:g} s."
                )
            if self.every_s <= self.for_s:
                raise ValueError(
                    f"A link that fails for for_s={self.for_s} every every_s={self.every_s} is "
                    f"never up: choose every_s over for_s."
                )

    def is_down(self, rank: int, at_s: float) -> bool:
        """Whether it keeps this worker's link down at a time."""
        if rank not in self.workers:
            return False
        begins_s, ends_s = self._changes_s(at_s)[:2]
        return begins_s <= at_s < ends_s

    def next_change_s(self, at_s: float) -> float | None:
        """When an outage next begins or ends after a time; None: never again."""
        return next((change_s for change_s in self._changes_s(at_s) if change_s > at_s), None)

    def _changes_s(self, at_s: float) -> list[float]:
        """When the last outage that has begun begins and ends, and when the one after it begins;
        before the first one: of the first.
        """
        if self.every_s is None:
            return [self.at_s, self.at_s + self.for_s]
        number = max(period_number(at_s, self.at_s, self.every_s), 0)
        begins_s, next_s = (self.at_s + k * self.every_s for k in (number, number + 1))
        return [begins_s, begins_s + self.for_s, next_s]


def parse_fault(entry: Mapping[str, Any]) -> Fault:
    """A mapping of worker or workers, at_s, for_s and perhaps every_s as a fault.

    Raises:
        ValueError: for unknown or missing keys, and as `Fault` does.
    """
    allowed = ("worker", "workers", "at_s", "for_s", "every_s")
    values = dict(check_keys("A fault", entry, allowed))
    for name in ("at_s", "for_s"):
        if name not in values:
            raise ValueError(f"A fault needs {name}, in seconds: {entry!r} has none.")
    if ("worker" in values) == ("workers" in values):
        raise ValueError(f"A fault names one rank in worker or several in workers: {entry!r}.")
    workers = [values.pop("worker")] if "worker" in values else values.pop("workers")
    if not isinstance(workers, list | tuple):
        raise ValueError(f"A fault's workers are a list of ranks, not {workers!r}.")
    return Fault(workers=tuple(workers), **values)
