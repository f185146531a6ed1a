"""How accuracy grows, and which algorithm needs the fewest steps or bytes to the target."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import pandas as pd

from experiments.report.cells import leading, outcomes, said_of
from experiments.report.data import ReportData
from experiments.report.figures.plots import OVER, accuracy_plot
from experiments.report.phrases import kinds, sentence, so_far
from experiments.report.results_table import COMPARABLE, comparable
from experiments.report.section import PageTable, Section
from experiments.report.statistics import ALIKE
from host.words import counted, listed

TITLE = "Accuracy over time, steps and bytes"

_NAMES = ("accuracy_over_time", "accuracy_over_steps", "accuracy_over_bytes")
_WAY = ("steps to accuracy", "MB to accuracy")
_IDENTITY = [*COMPARABLE, "optim", "name", "label", "runs", "missed"]


def section(data: ReportData) -> Section:
    """The way to the target: which algorithm needs the fewest steps, and which the fewest bytes."""
    table, left_out = data.table, data.drawn().left_out
    page = PageTable(
        caption=said_of(
            data.table,
            "Steps, and MB sent by a worker, until the target accuracy: medians over seeds.",
        ),
        cells=leading(table) | outcomes(table, _WAY),
        numbers=table.loc[:, [*_IDENTITY, "steps_to_accuracy", "mb_to_accuracy"]],
    )
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(table)),
        notes=[left_out] if left_out else [],
        tables={"way_to_accuracy": page},
        drawings={
            name: partial(accuracy_plot, data, over)
            for over, name in zip(OVER, _NAMES, strict=True)
        },
    )


def _finding(mark: str, table: pd.DataFrame) -> str:
    groups = list(comparable(table))
    parts = [
        _fewest(groups, "steps_to_accuracy", "the fewest steps"),
        _fewest(groups, "mb_to_accuracy", "the fewest bytes"),
    ]
    targeted = table.query("target.notna()")
    if targeted.empty:
        parts = ["the runs have no target"]
    elif not any(parts) and (targeted.reached > 0.5).any():  # rows that say them are lost
        parts = ["nobody knows after how many steps and bytes a target was reached"]
    elif not any(parts):
        when = so_far(targeted.steps_to_accuracy)
        parts = [f"no algorithm reaches a target in its median run{when}"]
    return sentence(parts, mark)


def _fewest(groups: list[pd.DataFrame], column: str, what: str) -> str:
    """Such as "the fewest steps to the target: a in 3 and b in 2 of 4 situations, ties counted
    twice".
    """
    winners = [_least(group.to_dict("records"), column) for group in groups]
    reached = [labels for labels in winners if labels]
    if not reached:
        return ""
    if len(groups) == 1:
        least = groups[0][column].min()
        is_mb = column.startswith("mb")
        number = f"{least:,.4g} MB by a worker" if is_mb else f"{least:,.0f} steps"
        tie = ", which tie" if len(reached[0]) > 1 else ""
        return f"{what} to the target: {listed(reached[0])}{tie}, {number}"
    wins = Counter(label for labels in reached for label in labels)
    said = listed(f"{label} in {number}" for label, number in wins.most_common())
    tie = ", ties counted for each" if wins.total() > len(reached) else ""
    return f"{what} to the target: {said} of {counted(len(groups), 'situation')}{tie}"


def _least(rows: list[dict[Any, Any]], column: str) -> list[str]:
    """The labels of the rows with the least number or one alike, if it is finite."""
    least = min((row[column] for row in rows if not math.isnan(row[column])), default=math.inf)
    return [row["label"] for row in rows if row[column] <= ALIKE * least < math.inf]
