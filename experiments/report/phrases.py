"""What findings are made of: numbers and situations in words."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from experiments.report.cells import describe
from experiments.report.results_table import SITUATION, varies
from experiments.report.statistics import MIN_SEEDS
from experiments.runs.load import load_environment
from host.words import counted, significant

MOST_NAMED = 20
"""The most machines, or commands, of runs that a page names."""


def wrapped(label: str, width: int) -> str:
    """A label in lines; the name of an option stays whole."""
    return textwrap.fill(label, width, break_long_words=False, break_on_hyphens=False)


def span(low: float, high: float) -> str:
    """An interval of times, or of how many times as fast, in brackets, with a blank before it;
    nothing where there is none. A miss is infinitely slow: it is the lower end of the latter.
    """
    if math.isnan(low) or math.isnan(high):
        return ""
    lower = "missed" if low == 0 else significant(low)
    upper = "or more" if math.isinf(high) else f"to {significant(high)}"
    return f" ({lower} {upper})"


def kinds(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measured and simulated rows apart, each with what to say before a sentence of theirs."""
    is_simulated = table.backend == "sim"
    for mark, rows in (("Simulated: ", table.loc[is_simulated]), ("", table.loc[~is_simulated])):
        if len(rows):
            yield mark or ("Measured: " if is_simulated.any() else ""), rows


def situation(group: pd.DataFrame, everything: pd.DataFrame) -> str:
    """What tells a group of rows from the others, such as "network wan, 4 workers, simulated"."""
    own = [column for column in SITUATION if varies(everything, column)]
    if varies(everything, "backend"):
        own.append("backend")
    return describe(group, own)


def machines(runs: pd.DataFrame) -> list[str]:
    """Such as "AMD EPYC, 2 cores, torch 2.13.0": what the runs were made on, that of most runs
    first; none where no record says it.
    """
    found = Counter(_machine(load_environment(folder)) for folder in runs.folder)
    return [machine for machine, _ in found.most_common() if machine]


def _machine(facts: Mapping[str, Any]) -> str:
    try:
        return (
            f"{facts['cpu']}, {counted(facts['cores'], 'core')}, torch {facts['packages']['torch']}"
        )
    except (ValueError, TypeError, KeyError):
        return ""


def caution(table: pd.DataFrame) -> str:
    """What to add to a claim about rows of fewer than three seeds."""
    if (table.runs >= MIN_SEEDS).all():
        return ""
    return f" (of fewer than {MIN_SEEDS} seeds in places, where differences may be chance)"


def so_far(medians: pd.Series) -> str:
    """What to add where nobody reaches a target: some `medians` are NaN, since no run has ended."""
    return " so far" if medians.isna().any() else ""


def sentence(parts: Iterable[str], mark: str = "", names: Iterable[str] = ()) -> str:
    """One sentence of several clauses, after a `mark` of `kinds`; one of `names` that it begins
    with keeps its letters.
    """
    text = "; ".join(part for part in parts if part)
    if not mark and not text.startswith(tuple(names)):
        text = text[:1].upper() + text[1:]
    return f"{mark}{text}."
