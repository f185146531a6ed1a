"""What was run, on what, and what weakens it as evidence."""

from __future__ import annotations

import pandas as pd

from experiments.report.cells import TITLE_COLUMNS, describe, repeated, unlike
from experiments.report.data import ReportData
from experiments.report.phrases import MOST_NAMED, machines, sentence
from experiments.report.places import STAND_IN
from experiments.report.results_table import SITUATION
from experiments.report.section import Section
from experiments.report.statistics import MIN_SEEDS
from host.words import counted

TITLE = ""
"""The page begins with it, without a heading."""


def section(data: ReportData) -> Section:
    """How many runs there are of what, and what weakens them as evidence."""
    runs, table = data.runs, data.table
    num_situations = len(runs.drop_duplicates([*SITUATION, "backend"]))
    of_seeds = f"{table.runs.min()} to {table.runs.max()}"
    if table.runs.min() == table.runs.max():
        of_seeds = str(table.runs.min())
    parts = [
        f"{counted(len(runs), 'run')} of {counted(len(set(runs['name'])), 'algorithm')} in "
        f"{counted(num_situations, 'situation')}, {of_seeds} a setting",
        *([describe(runs, (*TITLE_COLUMNS, "target"))] if num_situations == 1 else []),
        _kinds(runs),
    ]
    return Section(finding=sentence(parts), notes=[*_weaknesses(data), *_machines(runs)])


def _kinds(runs: pd.DataFrame) -> str:
    num_simulated = int((runs.backend == "sim").sum())
    if not num_simulated:
        return "all measured on real workers"
    if num_simulated == len(runs):
        return "all simulated"
    return f"{num_simulated:,} simulated and {len(runs) - num_simulated:,} measured, never mixed"


def _weaknesses(data: ReportData) -> list[str]:
    table, notes = data.table, [*repeated(data.runs), *unlike(data.runs)]
    few = int((table.runs < MIN_SEEDS).sum())
    if few:
        notes.append(
            f"{counted(few, 'setting')} of {len(table)} with fewer than {MIN_SEEDS} seeds: no "
            "interval, and no difference can be told from chance."
        )
    if table.baseline.isna().any():
        notes.append("Some situations have no baseline: they have no speed-up.")
    if (table.is_best_baseline & ~table.is_baseline).any():
        notes.append(
            f"Where PyTorch's own data parallelism was not run, {STAND_IN} stands in as the "
            "baseline: it cannot be simulated."
        )
    if table.shared_gpu.any():
        num_shared = int(data.runs.shared_gpu.sum())
        notes.append(
            f"{counted(num_shared, 'run')} of workers that shared a GPU: their times are no claim "
            "and left out everywhere."
        )
    return notes


def _machines(runs: pd.DataFrame) -> list[str]:
    """One line on the machines, and a warning where times are of several."""
    known = machines(runs)
    if not known:
        return ["The machine was not recorded."]
    if len(known) == 1:
        return [f"Machine: {known[0]}."]
    return [f"Machines: {'; '.join(known[:MOST_NAMED])}. Times of several are compared as of one."]
