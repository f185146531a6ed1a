"""Which situations share trainings: simulated runs often differ in their clocks alone, so that what
one network's runs say of learning, another's say again.
"""

from __future__ import annotations

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.results_table import COMPARABLE
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import settings_of_runs


def sets_of_trainings(data: ReportData) -> pd.Series:
    """Of each row of `data.table` the number of its set: situations are in one set where any of
    their runs have the same label, seed, steps and scores.
    """
    table, curves = data.table, Curves.of(data)
    situations = table.groupby(list(COMPARABLE), dropna=False).ngroup()
    parents = list(range(int(situations.max()) + 1))

    def root(k: int) -> int:
        while parents[k] != k:
            k = parents[k]
        return k

    first: dict[tuple[object, ...], int] = {}
    runs = zip(settings_of_runs(data), data.runs.label, data.runs.seed, strict=True)
    for run, (setting, label, seed) in enumerate(runs):
        if not len(curves.get("score", run)):
            continue
        training = (label, seed, curves.ids["step"][run], curves.ids["score"][run])
        own = root(int(situations[setting]))
        parents[own] = root(first.setdefault(training, own))
    return situations.map(root)
