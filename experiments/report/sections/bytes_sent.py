"""What a worker sends, beside the best baseline."""

from __future__ import annotations

import pandas as pd

from experiments.report.cells import leading, outcomes
from experiments.report.data import ReportData
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE
from experiments.report.section import PageTable, Section
from host.words import listed, significant

TITLE = "Bytes"

_HEADERS = ("steps", "MB sent per worker", "MB a step", "of the baseline's")
_NUMBERS = [
    *(*COMPARABLE, "optim", "name", "label", "shared_gpu", "runs"),
    *("steps", "mb_sent_per_worker", "mb_a_step", "bytes_ratio", "bytes_baseline"),
]


def section(data: ReportData) -> Section:
    """What a worker sends, beside the best baseline."""
    table = data.table
    page = PageTable(
        caption="What a worker sent, by its interface's counter (simulated: by the cost model): "
        "medians over seeds, and a step's bytes over those of the baseline that sends most: plain "
        "DDP where it was run.",
        cells=leading(table) | outcomes(table, _HEADERS),
        numbers=table.loc[:, _NUMBERS],
    )
    finding = " ".join(_finding(mark, rows) for mark, rows in kinds(table))
    return Section(finding=finding, tables={"bytes": page})


def _finding(mark: str, table: pd.DataFrame) -> str:
    rows = table.query("label != bytes_baseline").dropna(subset="bytes_ratio")
    if rows.empty:
        return sentence(["no bytes can be compared with a baseline's"], mark)
    ratios = rows.groupby("label").bytes_ratio.median().sort_values()
    baselines = listed(sorted(set(rows.bytes_baseline)))
    shares = ratios.map(significant)
    least, most = shares.iloc[0], shares.iloc[-1]
    parts = [f"beside {baselines}, {_sending(shares, least)} least a step, {least} of its bytes"]
    if most != least:
        parts.append(f"{_sending(shares, most)} most, {most} of them")
    return sentence(parts, mark)


def _sending(shares: pd.Series, share: str) -> str:
    """Such as "a sends the" or "a and b send the": all that send as much, to three digits."""
    labels = [str(label) for label, own in shares.items() if own == share]
    return f"{listed(labels)} {'sends' if len(labels) == 1 else 'send'} the"
