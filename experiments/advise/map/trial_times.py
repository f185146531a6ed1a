"""Trials at places of the map: when each evaluation of a trial would have been there.

A setting that is good where compute rules may be bad where bytes do. So each algorithm is tuned for
one place of each kind, by the trials that all places have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from experiments.advise.map.job import job_at
from experiments.advise.map.sent import sent, shapes_of
from experiments.advise.map.times import times_s
from experiments.advise.tuning.trials import Trial
from experiments.runs.load import load_config

PLACES = {"compute": (0.1, 0.001), "bytes": (30.0, 0.001), "delay": (0.1, 1.0)}
"""What rules there, with its rho and lambda."""


def on_map(trials: Iterable[Trial]) -> list[Trial]:
    """Each trial at each of `PLACES`, with the times of its evaluations there.

    Raises `UserError` as `load_config`.
    """
    return [placed for trial in trials for placed in _placed(trial)]


def _placed(trial: Trial) -> Iterator[Trial]:
    config = load_config(trial.folder)
    workers = int(config["workers"])
    shapes = shapes_of(config["model"])
    own = sent(shapes, config["algo"], config["optim"], workers)
    steps = np.array([float(row.step) for row in trial.evaluations])
    for place, (rho, lambda_) in PLACES.items():
        ends_s = times_s(own, job_at(rho, lambda_, workers), steps)
        rows = [
            replace(row, time_s=float(time_s))
            for row, time_s in zip(trial.evaluations, ends_s, strict=True)
        ]
        yield replace(trial, place=place, evaluations=rows)
