"""What a relaxation costs in accuracy at the end of the runs."""

from __future__ import annotations

import pandas as pd

from experiments.report.cells import leading, outcomes, said_of
from experiments.report.data import ReportData
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE, comparable
from experiments.report.scores import signs
from experiments.report.section import PageTable, Section
from experiments.tasks.target import LOWER_IS_BETTER
from host.words import counted, listed

TITLE = "Accuracy in the end"
OWN = " Workers' own models are those that the workers have themselves, each on its examples."

_END = (
    *("steps", "final accuracy (test), interval", "workers' own models (test)"),
    *("loss (test, nats)", "bits a character or byte (test)"),
    *("validation accuracy", "spread of weights", "status"),
)
_END_NUMBERS = [
    *("steps", "metric", "final_score", "final_low", "final_high", "final_own_score", "final_loss"),
    *("final_bits_per_character", "validation_score", "spread", "status"),
]
_IDENTITY = [*COMPARABLE, "optim", "name", "label", "runs", "missed"]


def section(data: ReportData) -> Section:
    """What a relaxation costs in accuracy at the end of the runs."""
    table = data.table
    page = PageTable(
        caption=said_of(
            table,
            "Accuracy and mean loss on the test set at the end of the runs, of the model evaluated "
            "(by default the mean of the workers'): medians over seeds, and the accuracy's 95 % "
            "interval." + (OWN if table.final_own_score.notna().any() else ""),
        ),
        cells=leading(table) | outcomes(table, _END),
        numbers=table.loc[:, [*_IDENTITY, *_END_NUMBERS]],
    )
    finding = " ".join(_finding(mark, rows) for mark, rows in kinds(table))
    return Section(finding=finding, tables={"final_accuracy": page})


def _finding(mark: str, table: pd.DataFrame) -> str:
    """The largest loss to the best baseline, in points or as it is, over all situations. A setting
    of which a run failed or diverged is not as good as any.
    """
    if table.stops_at_target.all():
        return sentence(
            ["the runs ended at their target, so that their accuracy is no cost of anything"], mark
        )
    table, losses = table.loc[~table.stops_at_target], []
    if len(metrics := sorted(set(table["metric"]))) > 1:
        rows = [_finding(mark, table.loc[table["metric"] == metric]) for metric in metrics]
        return " ".join(rows)
    is_fraction = not LOWER_IS_BETTER.get(metrics[0])
    for group in comparable(table):
        baseline = group[group.is_best_baseline]
        if len(baseline) and pd.notna(baseline.final_score.iloc[0]):
            loss = signs(group) * (baseline.final_score.iloc[0] - group.final_score)
            loss = 100 * loss if is_fraction else loss
            losses.append(group.assign(loss=loss).query("not is_best_baseline"))
    rows = pd.concat(losses) if losses else table.head(0).assign(loss=[])
    is_broken = rows.status.str.contains("failed|diverged")
    broken, rows = rows.loc[is_broken], rows.loc[~is_broken].dropna(subset="loss")
    if rows.empty:
        return sentence([f"no {metrics[0]} can be compared with a baseline's"], mark)
    worst, num = rows.loc[rows.loss.idxmax()], counted(len(rows) + len(broken), "setting")
    side = "below" if (worst.loss > 0) == is_fraction else "above"
    if is_fraction:
        within = int((rows.loss <= 1).sum())
        parts = [
            f"within a point of the fastest baseline's {metrics[0]} or above it: {within} of {num}",
            f"the lowest is {worst.label}, {abs(worst.loss):.1f} points {side} {worst.baseline}",
        ]
    else:
        as_good = int((rows.loss <= 0).sum())
        parts = [
            f"{metrics[0]} at most the fastest baseline's: {as_good} of {num}",
            f"the highest is {worst.label}, {abs(worst.loss):.4g} {side} {worst.baseline}",
        ]
    if len(broken):
        labels = listed(sorted(set(broken.label)))
        parts.append(f"runs of {labels} failed or diverged, which counts as neither")
    return sentence(parts, mark)
