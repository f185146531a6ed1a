"""The search: one setting after the other, by halving and doubling; it knows no workers.

    streams             4, 8, 16, until more are slower
    pattern, lanes      the others
    pieces              of large messages, where there are several streams
    size of buckets     a quarter or four times as large, as long as that is faster; then halves
    order of tensors    that in which gradients really came
    the end             what it began with and the best, in turn: the faster one stays

How messages travel comes first: it is what saves most where a network is slow, so that all later
steps of the search are fast ones.

A generator proposes settings and is sent the seconds that a step took by them. So all workers that
send the same seconds go the same way.
"""

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field, replace

WORTH_IT = 0.97
"""Of the best time so far: a change must take less, or chance would be taken for it. One that takes
more than the best time over this is slower.
"""
CLEAR = 1.5
"""Times as fast as the other: no second turn is needed."""
NUM_LAST_TURNS = 2
NUM_LAST_WINDOWS = 2 * NUM_LAST_TURNS


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is tuned: buckets are closed once they hold `bucket_bytes`, filled in the order of the
    model's parameters from its end, or `by_arrival` of gradients; travel on so many `lanes`, each
    with so many `streams`, which take `pieces` of large messages or have equal parts, and
    all-reduces up to `halving_doubling_bytes` by that pattern.
    """

    bucket_bytes: int
    by_arrival: bool = False
    lanes: int
    streams: int
    halving_doubling_bytes: int
    pieces: bool = False


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be tried, beside what it begins with.

    `kind` is equal for settings that come to the same, such as sizes that make the same buckets.
    """

    tunes_buckets: bool
    streams: tuple[int, ...] = ()
    halving_doubling_bytes: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    pieces: tuple[bool, ...] = ()
    kind: Callable[[Settings], Hashable] = lambda settings: settings


Proposals = Generator[Settings, float, Settings]
"""Yields settings, is sent seconds a step, and returns what is to stay."""
_Attempt = Generator[Settings, float, bool]
_Part = Generator[Settings, float, None]


def search(start: Settings, space: Space, num_windows: int) -> Proposals:
    """At most `num_windows` proposals, the first of which is `start`."""
    hill = _Hill(start, (yield start), space, num_windows - NUM_LAST_WINDOWS)
    for streams in space.streams:
        if streams > hill.best.streams:
            yield from hill.attempt(replace(hill.best, streams=streams))
            if hill.last_s > hill.best_s / WORTH_IT:
                break
    for limit in space.halving_doubling_bytes:
        yield from hill.attempt(replace(hill.best, halving_doubling_bytes=limit))
    for lanes in space.lanes:
        yield from hill.attempt(replace(hill.best, lanes=lanes))
    for pieces in space.pieces if hill.best.streams > 1 else ():
        yield from hill.attempt(replace(hill.best, pieces=pieces))
    yield from hill.sizes()
    yield from hill.attempt(replace(hill.best, by_arrival=True))
    if hill.best == start:
        return start
    start_s = best_s = 0.0
    for _ in range(NUM_LAST_TURNS):
        start_s += yield start
        best_s += yield hill.best
        if CLEAR * min(start_s, best_s) <= max(start_s, best_s):
            break
    return hill.best if best_s < start_s else start


@dataclass
class _Hill:
    best: Settings
    best_s: float
    space: Space
    num_left: int
    tried: set[Hashable] = field(default_factory=set)
    last_s: float = field(init=False)
    """Of the last one that was tried."""

    def __post_init__(self) -> None:
        self.last_s = self.best_s
        self.tried.add(self.space.kind(self.best))
        self.num_left -= 1

    def attempt(self, settings: Settings) -> _Attempt:
        """Whether they are better; untried where there is no window left, or nothing new."""
        kind = self.space.kind(settings)
        if not self.num_left or kind in self.tried:
            return False
        self.tried.add(kind)
        self.num_left -= 1
        self.last_s = yield settings
        is_better = self.last_s < WORTH_IT * self.best_s
        if is_better:
            self.best, self.best_s = settings, self.last_s
        return is_better

    def sizes(self) -> _Part:
        """Buckets of other sizes; the way back is nothing new, but for rounding."""
        if not self.space.tunes_buckets:
            return
        for factor in (0.25, 4.0):
            while (yield from self._scaled(factor)):
                pass
        for factor in (0.5, 2.0):
            yield from self._scaled(factor)

    def _scaled(self, factor: float) -> _Attempt:
        size = max(1, round(self.best.bucket_bytes * factor))
        return (yield from self.attempt(replace(self.best, bucket_bytes=size)))
