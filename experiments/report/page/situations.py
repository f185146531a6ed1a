"""The situations of a report as the page has them: their settings, targets, and what ties there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.cells import describe
from experiments.report.data import ReportData
from experiments.report.page.curves import Curves
from experiments.report.page.packing import plain
from experiments.report.page.targets import grid, verdicts
from experiments.report.results_table import KEYS, SITUATION, comparable, varies
from experiments.tasks.target import LOWER_IS_BETTER

PROBLEM = ["task", "data", "model", "partition", "metric"]
"""What situations share that have the same targets to choose from."""


def settings_of_runs(data: ReportData) -> list[int]:
    """Which row of `ReportData.table` each run belongs to."""
    keys = list(KEYS)
    settings = data.table[keys].assign(setting=data.table.index)
    merged = data.runs[keys].merge(settings, on=keys, how="left")
    assert len(merged) == len(data.runs), "each run is of one setting"
    return [int(setting) for setting in merged.setting]


def situations(data: ReportData, curves: Curves, settings: list[int]) -> dict[str, Any]:
    """The "problems", with their targets, and the "situations", for the page.

    `settings` are of `settings_of_runs`.
    """
    runs = dict(list(data.runs.groupby(pd.Series(settings, data.runs.index))))
    recorded = [runs[setting].target_score.iloc[0] for setting in data.table.index]
    table = data.table.assign(target_score=recorded)
    table["problem"] = table.groupby(PROBLEM, dropna=False).ngroup()
    grids = [_grid(rows, runs, curves, len(table)) for _, rows in table.groupby("problem")]
    told = [column for column in (*SITUATION, "backend") if varies(table, column)]
    found = []
    for group in comparable(table):
        targets = grids[group.problem.iloc[0]]
        own = [runs[setting] for setting in group.index]
        verdict = verdicts(group.to_dict("records"), own, curves, np.array(targets, dtype=float))
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


def _grid(
    rows: pd.DataFrame, runs: Mapping[Any, pd.DataFrame], curves: Curves, num_settings: int
) -> list[float]:
    """The targets of settings that share a problem; `num_settings` are of all problems."""
    own = [run for setting in rows.index for run in runs[setting].index]
    scores = np.concatenate([curves.get("score", run) for run in own])
    return grid(
        scores, rows.target_score.dropna().unique().tolist(), rows.metric.iloc[0], num_settings
    )
