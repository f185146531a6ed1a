"""The situations of a report as the page has them: their settings, targets, and what ties there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.cells import describe
from experiments.report.data import ReportData
from experiments.report.page.packing import plain
from experiments.report.page.targets import (
    UNKNOWN,
    Verdicts,
    grid,
    letter,
    verdicts,
)
from experiments.report.results_table import SITUATION, comparable, varies
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import Situation, ended, runs_of_settings
from experiments.tasks.target import LOWER_IS_BETTER

PROBLEM = ["task", "data", "model", "model_options", "partition", "metric"]
"""What situations share that have the same targets to choose from."""


def situations(data: ReportData, curves: Curves, settings: list[int]) -> dict[str, Any]:
    """The "problems", with their targets, and the "situations", for the page.

    `settings` are of `settings_of_runs`.
    """
    runs = runs_of_settings(data, settings)
    recorded = [runs[setting].target_score.iloc[0] for setting in data.table.index]
    table = data.table.assign(target_score=recorded)
    table["problem"] = table.groupby(PROBLEM, dropna=False).ngroup()
    grids = [_grid(rows, runs, curves, len(table)) for _, rows in table.groupby("problem")]
    groups = list(comparable(table))
    told_at = _verdicts(groups, runs, curves, grids)
    told = [column for column in (*SITUATION, "backend") if varies(table, column)]
    found = []
    for group, verdict in zip(groups, told_at, strict=True):
        best = group.index[group.is_best_baseline]
        row = group.iloc[0]
        found.append(
            {
                "label": describe(group, told) or "all runs",
                "problem": int(row.problem),
                "metric": row.metric,
                "is_lower": bool(LOWER_IS_BETTER.get(row.metric)),
                "is_simulated": row.backend == "sim",
                "recorded": plain(row.target_score),
                "settings": group.index.tolist(),
                "baseline": int(best[0]) if len(best) else -1,
                "ties": verdict.ties,
                "baselines": verdict.baselines,
            }
        )
    return {"problems": [{"targets": targets} for targets in grids], "situations": found}


def _verdicts(
    groups: Sequence[pd.DataFrame],
    runs: Mapping[Any, pd.DataFrame],
    curves: Curves,
    grids: Sequence[Sequence[float]],
) -> list[Verdicts]:
    """Of each group of settings. At the recorded target it is what the tables of the report say,
    whose page holds all problems.
    """
    found: dict[int, Verdicts] = {}
    for problem, targets in enumerate(grids):
        of_problem = [k for k, group in enumerate(groups) if group.problem.iloc[0] == problem]
        compared = [
            Situation(groups[k].to_dict("records"), [ended(runs[own]) for own in groups[k].index])
            for k in of_problem
        ]
        told = verdicts(compared, curves, np.array(targets, dtype=float))
        found |= zip(of_problem, told, strict=True)
        for k in of_problem:
            recorded = groups[k].target_score.iloc[0]
            if recorded in targets:
                found[k].ties[targets.index(recorded)] = _recorded(groups[k])
    return [found[k] for k in range(len(groups))]


def _recorded(group: pd.DataFrame) -> str:
    rows = group.to_dict("records")
    return "".join(
        UNKNOWN if math.isnan(row["time_to_accuracy_s"]) else letter(row) for row in rows
    )


def _grid(
    rows: pd.DataFrame, runs: Mapping[Any, pd.DataFrame], curves: Curves, num_settings: int
) -> list[float]:
    """The targets of settings that share a problem; `num_settings` are of all problems."""
    own = [run for setting in rows.index for run in runs[setting].index]
    scores = np.concatenate([curves.get("score", run) for run in own])
    return grid(
        scores, rows.target_score.dropna().unique().tolist(), rows.metric.iloc[0], num_settings
    )
