"""What one value of a configuration must be: its kind, and its range."""

import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from omegaconf import ListConfig

from experiments.plan.limits.of_runs import MAX_SEED

WORDS = {float: "a number", int: "a whole number", bool: "true or false"}
"""What a value of each kind is called."""


@dataclass(frozen=True)
class Limit:
    """What one value must be.

    Args:
        said: after "must be".
        holds: whether a value of the right kind is within.
        kind: int, float or bool. None: any.
        or_null: whether it may be null.
        is_list: whether it is a list of such values.
    """

    said: str
    holds: Callable[[Any], bool]
    kind: type | None = None
    or_null: bool = False
    is_list: bool = False

    def why_not(self, value: Any) -> str | None:
        """What is wrong with `value`, to follow its key; None: nothing."""
        has_several = self.is_list and isinstance(value, ListConfig)
        for one in value if has_several else [value]:
            if one is None and self.or_null:
                continue
            if self.kind is not None and not is_of({self.kind}, one):
                return f"takes {WORDS[self.kind]}{' or null' * self.or_null}, not {one!r}"
            if not self.holds(one):
                return f"must be {self.said}{', or null' * self.or_null}, got {one}"
        return f"takes a list, as [{value}]" if self.is_list and not has_several else None


def is_of(kinds: Set[Any], value: object) -> bool:
    """Whether `value` is of one of `kinds`. A whole number is a number. True is none, though 1 and
    0 may stand for true and false.
    """
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return not kinds.isdisjoint((int, float)) or (bool in kinds and value in (0, 1))
    return isinstance(value, tuple(kinds))


def whole(least: int, most: int | None = None) -> Limit:
    """A whole number of at least `least`, and at most `most`."""
    upper = "" if most is None else f" and at most {most}"
    return Limit(
        f"a whole number of at least {least}{upper}",
        lambda value: value >= least and (most is None or value <= most),
        int,
    )


def one_of(*values: object, hint: str = "") -> Limit:
    """One of `values`; None is null."""
    known = ", ".join("null" if value is None else str(value) for value in values)
    return Limit(f"one of {known}{hint}", lambda value: value in values)


def or_null(limit: Limit) -> Limit:
    """As `limit`, or null."""
    return Limit(limit.said, limit.holds, limit.kind, or_null=True)


def each(limit: Limit) -> Limit:
    """A list of such."""
    return Limit(limit.said, limit.holds, limit.kind, is_list=True)


ANY = Limit("anything", lambda value: True)
NUMBER = Limit("a number", lambda value: True, float)
FROM_0 = Limit("at least 0", lambda value: value >= 0, float)
FINITE_FROM_0 = Limit("at least 0 and finite", lambda value: 0 <= value < math.inf, float)
ABOVE_0 = Limit("more than 0", lambda value: value > 0, float)
FINITE_ABOVE_0 = Limit("more than 0 and finite", lambda value: 0 < value < math.inf, float)
SHARE = Limit("at least 0 and at most 1", lambda value: 0 <= value <= 1, float)
PART = Limit("more than 0 and at most 1", lambda value: 0 < value <= 1, float)
DECAY = Limit("at least 0 and less than 1", lambda value: 0 <= value < 1, float)
FLAG = Limit("true or false", lambda value: True, bool)
SEED = whole(0, MAX_SEED)
STEPS = whole(0)
SIZE = whole(1)
