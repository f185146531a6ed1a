"""What of the communication compute does not hide."""

from __future__ import annotations

import pandas as pd

from experiments.report.cells import leading, outcomes
from experiments.report.data import ReportData
from experiments.report.phrases import kinds, sentence, situation
from experiments.report.results_table import COMPARABLE
from experiments.report.section import PageTable, Section

TITLE = "Exposed communication"

_HEADERS = ("steps/s", "exposed communication (s)", "of the training time")
_NUMBERS = [
    *(*COMPARABLE, "optim", "name", "label", "shared_gpu", "runs"),
    *("steps_per_s", "exposed_communication_s", "exposed_share"),
]
_OVERCOUNTED = (
    "Some records count what their evaluations sent as exposed communication, though the clock "
    "stood still meanwhile, and so more than their training time: no share is given for these."
)


def section(data: ReportData) -> Section:
    """What of the communication compute does not hide."""
    table = data.table
    page = PageTable(
        caption="Seconds that training waited for communication, and their part of the training "
        "time: medians over seeds.",
        cells=leading(table) | outcomes(table, _HEADERS),
        numbers=table.loc[:, _NUMBERS],
    )
    finding = " ".join(_finding(mark, rows) for mark, rows in kinds(table))
    notes = [_OVERCOUNTED] if table.is_overcounted.any() else []
    return Section(finding=finding, notes=notes, tables={"exposed_communication": page})


def _finding(mark: str, table: pd.DataFrame) -> str:
    rows = table.dropna(subset="exposed_share")
    if rows.empty:
        return sentence(["no exposed communication was recorded"], mark)
    order = rows.sort_values("exposed_share")
    least, most = order.head(1), order.tail(1)
    if len(rows) == 1:
        return sentence([f"training waits for communication for {_share(least, table)}"], mark)
    return sentence(
        [
            f"training waits for communication for {_share(least, table)} at the least, and for "
            f"{_share(most, table)} at the most"
        ],
        mark,
    )


def _share(row: pd.DataFrame, table: pd.DataFrame) -> str:
    """Such as "62 % of its time (torch_ddp, network wan)"."""
    where = ", ".join(filter(None, [row.label.iloc[0], situation(row, table)]))
    return f"{100 * row.exposed_share.iloc[0]:.0f} % of its time ({where})"
