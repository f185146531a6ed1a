"""What findings are made of: numbers and situations in words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator

import pandas as pd

from experiments.report.cells import describe
from experiments.report.results_table import SITUATION, varies
from experiments.report.statistics import MIN_SEEDS
from host.words import significant


def wrapped(label: str, width: int) -> str:
    """A label in lines; the name of an option stays whole."""
    return textwrap.fill(label, width, break_long_words=False, break_on_hyphens=False)


def span(low: float, high: float) -> str:
    """An interval in brackets, with a blank before it; nothing where there is none."""
    if math.isnan(low) or math.isnan(high):
        return ""
    upper = "or more" if math.isinf(high) else f"to {significant(high)}"
    return f" ({significant(low)} {upper})"


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
