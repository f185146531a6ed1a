"""What relaxations cost in accuracy: a row for each algorithm at its best learning rate."""

import math
import statistics
from collections import Counter
from typing import NamedTuple

import pandas as pd

from experiments.report.cells import describe
from experiments.report.configurations import OF_NO_ACCURACY, check_alike
from experiments.report.phrases import MOST_NAMED, machines
from experiments.report.results_table import SHARED
from experiments.report.statistics import best_by_accuracy, mean_half_width
from experiments.runs.load import find_twins, load_environment, unended
from host import markdown
from host.errors import UserError
from host.words import counted

BASELINE = "allreduce"
_HEADERS = (
    *("algorithm", "optimizer, learning rate x", "test accuracy (%)", "to all-reduce (points)"),
    *("MB sent a worker", "of all-reduce", "spread of weights"),
)
SITUATION = ("task", "model", "workers", "steps", "backend")


class ConvergenceRow(NamedTuple):
    """One algorithm at its best learning rate. Accuracies in per cent; `half_width` is that of the
    95 % interval of the mean over seeds (Student's t), NaN for one seed; `failed` counts the others
    by their status. Numbers are NaN where no seed completed.
    """

    algo: str
    optim: str
    lr_scale: float
    num_seeds: int
    failed: dict[str, int]
    accuracy: float
    half_width: float
    mb_sent: float
    spread: float


def best_rows(runs: pd.DataFrame) -> list[ConvergenceRow]:
    """One row for each algorithm of `runs` (of `load_runs`), the best first.

    Runs that have not ended are left out. Raises `UserError` where the others are not comparable,
    those of an algorithm differ in more than `lr_scale` and seed, or no run of the baseline
    completed.
    """
    runs = runs.loc[~unended(runs)]
    completed = runs.loc[runs.status == "completed"]
    check_alike(completed, SITUATION, but=OF_NO_ACCURACY, only=SHARED)
    for algo, own in runs.groupby("algo"):
        check_alike(own, ("optim",), f"the runs of {algo}", but=("lr_scale", *OF_NO_ACCURACY))
    if "metric" in runs and any(map(pd.notna, runs["metric"])):
        raise UserError("accuracies are compared, and some runs have a target of another metric")
    unknown = runs.folder[runs.lr_scale.isna()]
    if len(unknown):
        raise UserError(f"{unknown.iloc[0]} does not say its lr_scale: leave that run out")
    if (twins := find_twins(runs, ["algo", "lr_scale", "seed"])) is not None:
        one, other = twins
        seed = "no seed" if pd.isna(one.seed) else f"seed {one.seed}"
        raise UserError(
            f"{one.folder} and {other.folder} are two runs of {one.algo} with {seed} and "
            f"lr_scale={one.lr_scale:g}: keep one"
        )
    if BASELINE not in set(completed.algo):
        raise UserError(f"there is no run of {BASELINE} that completed to compare with: add some")
    rows = [_best(group) for _, group in runs.groupby("algo")]
    return sorted(rows, key=lambda row: -row.accuracy if row.num_seeds else 0.0)


def _best(runs: pd.DataFrame) -> ConvergenceRow:
    group = best_by_accuracy(runs)
    completed = group[group.status == "completed"]
    accuracies = [100 * a for a in completed.final_accuracy]
    return ConvergenceRow(
        algo=group.algo.iloc[0],
        optim=group.optim.iloc[0],
        lr_scale=float(group.lr_scale.iloc[0]),
        num_seeds=len(completed),
        failed=dict(Counter(group.status[group.status != "completed"])),
        accuracy=statistics.mean(accuracies) if accuracies else math.nan,
        half_width=mean_half_width(accuracies),
        mb_sent=completed.bytes_sent_per_worker.mean() / 1e6,
        spread=completed.spread.mean(),
    )


def table(rows: list[ConvergenceRow]) -> str:
    """The rows in Markdown; every accuracy beside its difference to full-precision all-reduce."""
    baseline = next(row for row in rows if row.algo == BASELINE)
    return markdown.table(_HEADERS, [_cells(row, baseline) for row in rows])


def _cells(row: ConvergenceRow, baseline: ConvergenceRow) -> list[str]:
    interval = f" ± {row.half_width:.2f}" if not math.isnan(row.half_width) else ""
    failed = "".join(f", {counted(n, 'seed')} {status}" for status, n in row.failed.items())
    if not row.num_seeds:
        return [row.algo, f"{row.optim}, {row.lr_scale:g}", f"-{failed}", *["-"] * 4]
    return [
        row.algo,
        f"{row.optim}, {row.lr_scale:g}",
        f"{row.accuracy:.2f}{interval}{failed}",
        f"{row.accuracy - baseline.accuracy:+.2f}",
        f"{row.mb_sent:,.1f}",
        f"{row.mb_sent / baseline.mb_sent:.3f}",
        f"{row.spread:.1e}",
    ]


def page(runs: pd.DataFrame, rows: list[ConvergenceRow], command: str) -> str:
    """The table with what it is of, the commands, and the machine of the runs; `rows` are the
    `best_rows` of these runs, `command` makes the page.
    """
    runs = runs.loc[~unended(runs)]
    known = machines(runs)[:MOST_NAMED] or ["The machine was not recorded"]
    situation = describe(runs, ("task", "model", "workers", "backend"))
    steps = int(runs.steps.max())
    rates = ", ".join(f"{scale:g}" for scale in sorted(runs.lr_scale.unique()))
    return (
        "# What relaxations cost in accuracy\n\n"
        f"{situation}; {counted(steps, 'step')} each; the learning rate of each algorithm's "
        f"optimizer times one of {rates}, whichever had the best mean validation accuracy. Test "
        "accuracy, mean over seeds and its 95 % interval (Student's t).\n\n"
        + "".join(f"    {line}\n" for line in [*_commands(runs), command])
        + f"\n{'; '.join(known)}.\n\n{table(rows)}\n"
    )


def _commands(runs: pd.DataFrame) -> list[str]:
    """Which have made the runs, that of most runs first."""
    told = (load_environment(folder).get("command") for folder in runs.folder)
    found = Counter(" ".join(command.split()) for command in told if isinstance(command, str))
    return [command for command, _ in found.most_common(MOST_NAMED)]
