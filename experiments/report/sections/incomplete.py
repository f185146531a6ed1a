"""The runs that failed or diverged, with their reasons, those that are compared with none, and what
could not be read.
"""

from __future__ import annotations

from collections import Counter

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.phrases import sentence
from experiments.report.results_table import AT_WORK, DETAIL, shown, varies
from experiments.report.section import PageTable, Section
from host.words import counted, listed

TITLE = "What did not complete"

_LISTED = 20
"""The most files that the section names one by one."""


def section(data: ReportData) -> Section:
    """The runs that failed or diverged, with their reasons, those that are compared with none, and
    files that could not be read.
    """
    ended = data.runs.query("status != 'completed'")
    counts = Counter(sorted(ended.status))
    said = [
        f"{counted(n, 'run')} {_verb(n) if status == AT_WORK else status}"
        for status, n in counts.items()
    ]
    if data.apart:
        said.append(f"{counted(len(data.apart), 'run')} compared with none")
    if data.problems:
        said.append(f"{counted(len(data.problems), 'file')} could not be read")
    finding = sentence([listed(said)] if said else ["every run completed, and every file was read"])
    tables = {"incomplete": _table(ended, data.runs)} if len(ended) else {}
    notes = [*data.apart, *data.problems][:_LISTED]
    if more := len(data.apart) + len(data.problems) - len(notes):
        notes.append(f"And {more} more of such runs and files.")
    return Section(finding=finding, notes=notes, tables=tables)


def _verb(number: int) -> str:
    return "has not ended" if number == 1 else "have not ended"


def _table(ended: pd.DataFrame, runs: pd.DataFrame) -> PageTable:
    """Of those of `runs` that did not complete; what all `runs` share of DETAIL is left out."""
    ended = ended.fillna({"reason": "no reason was recorded"})
    numbers = ended.loc[:, ["folder", "label", "net", "workers", "seed", "status", "reason"]]
    headers = {"name": "algorithm", "net": "network"}
    telling = [column for column in DETAIL if varies(runs, column)]
    cells = {
        headers.get(column, column): [shown(column, value) for value in ended[column]]
        for column in ("name", *telling, "net", "workers", "seed", "status", "reason")
    }
    return PageTable(caption="Runs that did not complete.", cells=cells, numbers=numbers)
