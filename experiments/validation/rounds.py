"""Figures of several rounds as a table: medians with their spread, and what measured them."""

import statistics
import sys
from collections.abc import Mapping, Sequence

from rich.table import Table

from host.command_line.console import Console
from host.environment import environment
from host.words import counted


def print_rounds(title: str, rows: Mapping[str, Sequence[float]]) -> None:
    """Median, least and greatest of all rounds, a row for each figure."""
    table = Table(title=title, caption=measured_by(len(next(iter(rows.values())))))
    for heading in ("", "median", "min", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in rows.items():
        table.add_row(name, *_spread(values))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def measured_by(num_rounds: int) -> str:
    """This machine, and how many rounds it has measured."""
    host = environment()
    return (
        f"{host['cpu']}, {counted(host['cores'], 'core')}, Linux {host['kernel']}, "
        f"torch {host['packages']['torch']}, {counted(num_rounds, 'round')}"
    )


def _spread(values: Sequence[float]) -> list[str]:
    return [f"{f(values):.3g}" for f in (statistics.median, min, max)]
