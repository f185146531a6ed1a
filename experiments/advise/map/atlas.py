"""The map: who is first over rho and lambda, a panel for each number of workers and each loss.

Without loss a panel holds for any compute and any number of bytes. TCP counts packets, so panels
with loss hold for the job of `COMPUTE_MS` and `MODEL_MB`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.job import COMPUTE_MS, job_at
from experiments.advise.map.standing import (
    always_best,
    baseline_place,
    grids,
    lead,
    sent_by,
)
from experiments.advise.map.trainings import Array, Trained, load
from host.commands import say
from host.cores import usable_cores
from host.forks.side_by_side import side_by_side
from host.words import listed

RHOS: Array = np.geomspace(0.01, 100, 9)
LAMBDAS: Array = np.geomspace(1e-4, 1, 9)
LOSSES_PCT = (0.0, 0.1, 1.0)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One number of workers at one loss: a grid for each goal of the trainings."""

    trained: Trained
    loss_pct: float
    grids: Sequence[Grid]

    def rho(self, rate_mbit: float) -> float:
        """What a rate of a grid stands for."""
        return job_at(1.0, 0.0, self.trained.workers).rate_mbit / rate_mbit

    def rate_mbit(self, rho: float) -> float:
        """Where a value of rho stands on the axis of rates."""
        return job_at(rho, 0.0, self.trained.workers).rate_mbit


def panels(tasks: Sequence[str], rhos: Array = RHOS, lambdas: Array = LAMBDAS) -> list[Panel]:
    """All of some tasks, computed side by side: by task, by workers, then by loss."""
    own = [trained for trained in load()[1] if trained.task in tasks]
    for trained in own:
        for training in trained.trainings:
            sent_by(trained, training, trained.workers)  # here once, not in each child
    alike: defaultdict[int, list[Trained]] = defaultdict(list)
    for trained in own:
        alike[trained.workers].append(trained)
    wanted = [(group, loss_pct) for group in alike.values() for loss_pct in LOSSES_PCT]
    jobs = [partial(_panels, *one, rhos, lambdas) for one in wanted]
    made = side_by_side(jobs, min(len(jobs), usable_cores()), _say)
    return sorted(
        (panel for of_tasks in made for panel in of_tasks),
        key=lambda panel: (tasks.index(panel.trained.task), panel.trained.workers, panel.loss_pct),
    )


def _panels(alike: Sequence[Trained], loss_pct: float, rhos: Array, lambdas: Array) -> list[Panel]:
    """Of all tasks with equally many workers: they have many operations in common."""
    jobs = [
        [job_at(rho, lambda_, alike[0].workers, loss_pct) for lambda_ in lambdas]
        for rho in rhos[::-1]
    ]
    return [
        Panel(trained=trained, loss_pct=loss_pct, grids=at)
        for trained, at in zip(alike, grids(alike, jobs), strict=True)
    ]


def _say(made: Sequence[Panel]) -> None:
    tasks = listed([panel.trained.task for panel in made])
    say(f"computed {made[0].trained.workers} workers, {made[0].loss_pct:g} % of loss: {tasks}")


def frame(shown: Sequence[Panel]) -> pd.DataFrame:
    """A row for each place and target: who is first, by how much before all-reduce, who ties."""
    return pd.DataFrame([row for panel in shown for row in _rows(panel)])


def _rows(panel: Panel) -> Iterator[dict[str, object]]:
    own = panel.trained
    for goal, at in zip(own.goals, panel.grids, strict=True):
        for rate, delay in np.ndindex(at.best_s.shape):
            first, ties = at.first(rate, delay), at.ties(rate, delay)
            ratio, (low, high) = np.nan, (np.nan, np.nan)
            if first is not None:
                pair = (at.times_s[algo][:, rate, delay] for algo in (first, BASELINE))
                ratio, (low, high) = lead(*pair)
            yield {
                "task": own.task,
                "workers": own.workers,
                "loss_pct": panel.loss_pct,
                "target": goal.accuracy,
                "points_below": goal.points,
                "rho": panel.rho(float(at.rates_mbit[rate])),
                "lambda": at.delays_ms[delay] / COMPUTE_MS,
                "first": first,
                "times_as_soon_as_allreduce": ratio,
                "low": low,
                "high": high,
                "allreduce": baseline_place(first, ties),
                "ties": " ".join(ties),
                "best_at_all_targets": " ".join(always_best(panel.grids, rate, delay)),
            }
