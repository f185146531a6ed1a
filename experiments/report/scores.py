"""Scores of runs and of their evaluations, by the metrics of their targets.

Records of runs whose metric is accuracy have it in fields of its own; here all are alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.report.statistics import Array
from experiments.tasks.target import ACCURACY, LOWER_IS_BETTER


def with_scores(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` (of `load_runs`) with what the target's metric came to: "metric", "target" and values
    as `experiments.report.results_table.named` says.
    """
    metric = (runs["metric"] if "metric" in runs else pd.Series(None, runs.index, "str")).fillna(
        ACCURACY
    )
    is_accuracy = metric == ACCURACY
    scores = {
        f"{name}_score": runs[f"{name}_accuracy"].where(
            is_accuracy, runs.get(f"{name}_score", math.nan)
        )
        for name in ("target", "final", "validation")
    }
    runs = runs.assign(metric=metric, **scores)
    target = _targets(list(zip(runs.metric, runs.target_score, strict=True)))
    return runs.assign(target=pd.Series(target, runs.index, dtype="str"))


def _targets(pairs: Sequence[tuple[str, float]]) -> list[str | None]:
    """Such as "accuracy 0.9" of each metric and score, None where there is no score. Two have one
    text where they are equal alone: those that six digits do not tell apart have all digits.
    """
    short = {(name, score): f"{name} {score:g}" for name, score in pairs if not pd.isna(score)}
    num_alike = Counter(short.values())
    told = {
        pair: text if num_alike[text] == 1 else f"{pair[0]} {float(pair[1])!r}"
        for pair, text in short.items()
    }
    return [told.get(pair) for pair in pairs]


def scored(metrics: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of `load_metrics`, with a "score": accuracy, where that is the metric of its
    one of `runs` (of `load_runs`). One whose score is no number is left out. "step" is the mean
    worker's, where that is known: workers that wait for nobody may have done more than the last.
    """
    score = metrics.accuracy
    if "metric" in runs and "score" in metrics:
        others = set(runs.folder[runs["metric"].fillna(ACCURACY) != ACCURACY])
        score = score.mask(metrics.folder.isin(others), metrics.score)
    step = metrics.step
    if "mean_step" in metrics:
        step = metrics.mean_step.fillna(step)
    rows = metrics.assign(score=score, step=step)
    return rows.loc[(rows["kind"] == "evaluation") & rows.score.notna()]


def ways_to_target(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """What the columns `names` come to at the targets of runs: where a straight line from the last
    evaluation that misses the target to the first that reaches it does; the numbers of the first
    evaluation of all, where that reaches it.

    Args:
        rows: evaluations in their order, with "folder", "metric", "score" and "target_score".
        names: columns of numbers.

    Returns:
        a row for each folder that reaches its target, by its name.
    """
    sign = signs(rows)
    first = rows.loc[sign * rows.score >= sign * rows.target_score].drop_duplicates("folder")
    before = rows.groupby("folder")[[*names, "score"]].shift().loc[first.index]
    parts = parts_of_way(before.score, first.score, first.target_score)
    found = {name: on_line(before[name], first[name], parts) for name in names}
    return pd.DataFrame(found, index=pd.Index(first.folder, name="folder"), dtype=float)


def parts_of_way(before: Array, after: Array, target: Array) -> Array:
    """`experiments.training.metrics.part_of_way` of many."""
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = np.asarray((target - before) / (after - before), dtype=float)
    return np.where(np.isfinite(parts), parts, 1.0)


def on_line(before: Array, after: Array, parts: Array) -> Array:
    """What numbers are at such parts of the way; at its end those before may be missing."""
    return np.where(parts == 1, after, before + parts * (after - before))


def signs(frame: pd.DataFrame) -> pd.Series:
    """What makes the better of two scores of a row's metric the greater one."""
    signs = [-1.0 if LOWER_IS_BETTER.get(metric) else 1.0 for metric in frame["metric"]]
    return pd.Series(signs, frame.index, dtype=float)
