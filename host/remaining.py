"""How long a command's work will take from now: one estimate for all commands.

The work is known as parts, one after the other, each of pieces. What parts are expected to take
counts relative to one another: what is done has taken so many times longer, and so will what is to
come. In the part that is at work its own pieces say soon how long the rest of it takes:

    seconds of the part = (spent + W host cost) / (share done + W)        W = 1 / 50

where `host` is how many times longer than expected the earlier parts took, and W is larger where
pieces of one size take very unlike times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from host.commands import say

EVERY_S = 10.0
FIRST_SHARE, FIRST_S = 0.1, 1.0
"""Of the work, and seconds at the least, after which it is said for the first time."""

_WEIGHT = 1 / 50

Clock = Callable[[], float]


@dataclass
class _Part:
    """`share` of it is done, in `spent_s`; None: it has not begun."""

    cost_s: float
    is_measured: bool = False
    weight: float = _WEIGHT
    share: float = 0.0
    spent_s: float | None = None
    sizes: list[float] = field(default_factory=list)
    total: float = 0.0
    at_once: int = 1

    def left_s(self, host: float | None) -> float:
        """`host` is None where no earlier part says how slow it is."""
        assert self.spent_s is not None, "it has begun"
        if host is None and not self.share:
            return self.cost_s
        weight = 0.0 if host is None else self.weight
        whole_s = (self.spent_s + weight * (host or 0) * self.cost_s) / (self.share + weight)
        return whole_s * (1 - self.share)


class Work:
    """What a command is going to do; what is left of it is said after a tenth, every `EVERY_S`, and
    from then on with lines.

    Args:
        expected_s: by part, in order, how long each may take; only their relations matter once one
            of them is done.
        clock: seconds.
    """

    def __init__(
        self, expected_s: Mapping[str, float] | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._parts = {name: _Part(cost_s) for name, cost_s in (expected_s or {}).items()}
        self._clock = clock
        self._part: _Part | None = None
        self._started_s = self._begun_s = self._said_s = clock()
        self._has_said = False

    def expect(
        self, part: str, seconds: float, *, is_measured: bool = False, weight: float = _WEIGHT
    ) -> None:
        """By now it is known better how long a part may take, or that there is one more. What
        `is_measured` takes no longer for being on a slow host. It counts as much as that share of
        the part's own pieces, its `weight`.
        """
        own = self._parts.setdefault(part, _Part(seconds))
        own.cost_s, own.is_measured, own.weight = seconds, is_measured, weight

    def begin(self, part: str, sizes: Sequence[float] = (1.0,), at_once: int = 1) -> None:
        """Its pieces are next, and what came before is done.

        Args:
            part: its name.
            sizes: of the pieces, relative to one another.
            at_once: how many of them are at work at a time.
        """
        self._end()
        own = self._part = self._parts.setdefault(part, _Part(1.0))
        own.sizes, own.total, own.at_once = list(sizes), sum(sizes), at_once
        own.spent_s, self._begun_s = 0.0, self._clock()

    def done(self, size: float = 1.0, line: str = "", under_way: float | None = None) -> None:
        """A piece of that size is done, which is said by `line`, where there is one; `under_way` is
        what is done of the others that are at work. None: half of each, on the average.
        """
        own = self._at_work()
        own.sizes.remove(size)
        if under_way is None:
            others = min(own.at_once, len(own.sizes) + 1) - 1
            under_way = others / 2 * fmean(own.sizes) if own.sizes else 0.0
        self._count(own, under_way)
        self.say(line)

    def under_way(self, size: float) -> None:
        """So much is done of the pieces that are at work, all together."""
        self._count(self._at_work(), size)
        self.say()

    def _at_work(self) -> _Part:
        assert self._part is not None and self._part.spent_s is not None, "a part has begun"
        return self._part

    def _count(self, own: _Part, under_way: float) -> None:
        own.spent_s = self._clock() - self._begun_s
        own.share = 1 - (sum(own.sizes) - under_way) / own.total

    def say(self, line: str = "") -> None:
        """Say it, with what is left; without a line only where nothing was said for `EVERY_S`, or
        yet, and a tenth is done.
        """
        if line or self._is_time():
            left = str(self) if self._is_known() else ""
            self._said_s, self._has_said = self._clock(), self._has_said or bool(left)
            say("; ".join(filter(None, [line, left])))

    def _is_time(self) -> bool:
        if self._clock() - self._said_s >= EVERY_S:
            return True
        spent_s = self._clock() - self._started_s
        return not self._has_said and spent_s >= FIRST_S and self._is_known()

    def _is_known(self) -> bool:
        spent_s = self._clock() - self._started_s
        return self.share >= FIRST_SHARE or spent_s >= EVERY_S

    @property
    def share(self) -> float:
        """Of the seconds that all takes, those that are gone."""
        spent_s, left_s = self._clock() - self._started_s, self.left_s
        return spent_s / (spent_s + left_s) if spent_s + left_s else 1.0

    @property
    def left_s(self) -> float:
        """Seconds from the last piece until all is done."""
        parts = list(self._parts.values())
        at = parts.index(self._part) if self._part is not None else -1
        begun = [part for part in parts[: at + 1] if part.spent_s is not None]
        coming_s = sum(part.cost_s * (_slowness(begun, part) or 1.0) for part in parts[at + 1 :])
        own = self._part
        earlier = None if own is None else _slowness([p for p in begun if p is not own], own)
        return coming_s + (0.0 if self._part is None else self._part.left_s(earlier))

    def __str__(self) -> str:
        """Such as "23 % done, about 4 min left"."""
        return f"{100 * self.share:.0f} % done, about {duration(self.left_s)} left"

    def _end(self) -> None:
        if self._part is not None:
            self._part.share, self._part.spent_s = 1.0, self._clock() - self._begun_s


def _slowness(parts: Sequence[_Part], of: _Part) -> float | None:
    """How many times longer than expected these took, as far as they are done: those that were
    expected as `of` is, by what was measured here or without.
    """
    alike = [part for part in parts if part.is_measured == of.is_measured]
    cost_s = sum(part.share * part.cost_s for part in alike)
    took_s = sum(part.spent_s or 0.0 for part in alike)
    return took_s / cost_s or None if cost_s else (1.0 if of.is_measured else None)


def duration(seconds: float) -> str:
    """Such as "40 s", "12 min" or "2 h 10 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
