"""What travels, and what training waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from experiments.report.cells import leading, outcomes
from experiments.report.data import Study
from experiments.report.phrases import kinds, sentence, situation
from experiments.report.results_table import COMPARABLE
from experiments.report.section import PageTable, Section
from host.words import listed, significant

_IDENTITY = [*COMPARABLE, "optim", "name", "label", "shared_gpu", "runs"]


def bytes_sent(study: Study) -> Section:
    """What a worker sends, beside the best baseline."""
    return Section(
        finding=" ".join(_bytes_finding(mark, rows) for mark, rows in kinds(study.table)),
        tables={
            "bytes": _page(
                study.table,
                "What a worker sent, by its interface's counter (simulated: by the cost model): "
                "medians over seeds, and a step's bytes over those of the baseline that sends "
                "most: plain DDP where it was run.",
                ("steps", "MB sent per worker", "MB a step", "of the baseline's"),
                ["steps", "mb_sent_per_worker", "mb_a_step", "bytes_ratio", "bytes_baseline"],
            )
        },
    )


def exposed_communication(study: Study) -> Section:
    """What of the communication compute does not hide."""
    return Section(
        finding=" ".join(_exposed_finding(mark, rows) for mark, rows in kinds(study.table)),
        tables={
            "exposed_communication": _page(
                study.table,
                "Seconds that training waited for communication, and their part of the training "
                "time: medians over seeds.",
                ("steps/s", "exposed communication (s)", "of the training time"),
                ["steps_per_s", "exposed_communication_s", "exposed_share"],
            )
        },
    )


def _page(
    table: pd.DataFrame, caption: str, headers: Sequence[str], numbers: list[str]
) -> PageTable:
    return PageTable(
        caption=caption,
        cells=leading(table) | outcomes(table, headers),
        numbers=table.loc[:, [*_IDENTITY, *numbers]],
    )


def _bytes_finding(mark: str, table: pd.DataFrame) -> str:
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


def _exposed_finding(mark: str, table: pd.DataFrame) -> str:
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
