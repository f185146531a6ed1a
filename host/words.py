"""What is printed: counts, numbers and lists in words."""

from __future__ import annotations

from collections.abc import Iterable

_FEW = 4


def counted(number: int, noun: str) -> str:
    """Such as "1 run" or "12 runs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def significant(number: float) -> str:
    """To three digits: such as "0.261", "41.0" or "1,340"."""
    return f"{number:#.3g}".rstrip(".") if abs(number) < 100 else f"{number:,.0f}"


def listed(names: Iterable[str]) -> str:
    """Such as "a", "a and b" or "a, b and c"; of many the first ones, and how many more."""
    names = list(names)
    if len(names) > _FEW:
        names = [*names[: _FEW - 1], f"{len(names) - _FEW + 1} others"]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + "".join(names[-1:])
