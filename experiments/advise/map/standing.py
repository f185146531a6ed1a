"""Who is first at a place of the map: times to accuracy, compared by the rules of `surface`.

Two algorithms tie by `experiments.report.statistics.is_tie`. The error of the times is the largest
of any validated network, since the map has no rate of its own, and on top of it the spacing of the
evaluations, since steps are counted up to one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.job import Job
from experiments.advise.map.sent import Sent, sent
from experiments.advise.map.times import times_s
from experiments.advise.map.trainings import Array, Trained, Training, load
from experiments.report.statistics import Interval, prediction_errors, ratio_interval
from host.errors import UserError
from host.words import listed


def model_error(trained: Trained, goal: int) -> float:
    """By how much a time to that goal may be off, relative."""
    return (1 + max(prediction_errors().values())) * (1 + trained.spacing(goal)) - 1


def grids(trained: Trained, jobs: Sequence[Sequence[Job]]) -> list[Grid]:
    """The times of all algorithms to each goal, of `jobs` `[r][d]` by rates and delays that ascend;
    an algorithm is left out where it is not known whether it misses.
    """
    shape = (len(trained.goals), len(trained.seeds), len(jobs), len(jobs[0]))
    times_gsrd = {training.algo: np.empty(shape) for training in trained.trainings}
    for i, row in enumerate(jobs):
        for j, job in enumerate(row):
            for training in trained.trainings:
                times_gsrd[training.algo][:, :, i, j] = _times_gs(trained, training, job)
    return [
        Grid(
            rates_mbit=np.array([row[0].rate_mbit for row in jobs]),
            delays_ms=np.array([job.delay_ms for job in jobs[0]]),
            times_s={algo: times_gsrd[algo][goal] for algo in trained.steps(goal)},
            model_error=model_error(trained, goal),
        )
        for goal in range(len(trained.goals))
    ]


def _times_gs(trained: Trained, training: Training, job: Job) -> Array:
    """Of one algorithm to all goals; inf where they are not known."""
    unknown = (np.inf,) * len(trained.seeds)
    steps_gs = np.array([unknown if steps is None else steps for steps in training.steps])
    return times_s(sent_by(trained, training.algo, job.workers), job, steps_gs)


def sent_by(trained: Trained, algo: str, workers: int) -> Sent:
    """What an algorithm sends between so many workers; worked out once."""
    return _sent_by(trained.task, trained.workers, algo, workers)


@cache
def _sent_by(task: str, trained_workers: int, algo: str, workers: int) -> Sent:
    trained = next(t for t in load()[1] if (t.task, t.workers) == (task, trained_workers))
    training = next(own for own in trained.trainings if own.algo == algo)
    return sent(trained.model, training.config, trained.optims[training.optim], workers)


def lead(times: Array, baseline: Array) -> tuple[float, Interval]:
    """How many times as soon as the baseline, by medians, with its 95 % interval, of times by
    seed.
    """
    with np.errstate(invalid="ignore"):
        ratio = float(np.median(baseline) / np.median(times))
    return ratio, ratio_interval(baseline, times, paired=True)


def baseline_place(first: str | None, ties: Sequence[str]) -> str:
    """Whether all-reduce "wins", "ties" or "loses" where so many are first or tie; "missed" where
    nobody is first.
    """
    if first is None:
        return "missed"
    if first == BASELINE:
        return "wins"
    return "ties" if BASELINE in ties else "loses"


def trained_near(task: str, workers: int) -> list[Trained]:
    """The trainings of a task with so many workers, or with the next fewer and more ones.

    Raises `UserError` for fewer, or more, than were ever trained.
    """
    own = sorted((t for t in load()[1] if t.task == task), key=lambda t: t.workers)
    known = [t.workers for t in own]
    if not known[0] <= workers <= known[-1]:
        raise UserError(
            f"workers={workers} is beyond the trainings, which have {listed(map(str, known))}: "
            f"give {known[0]} to {known[-1]}"
        )
    below = [t for t in own if t.workers <= workers][-1]
    above = next(t for t in own if t.workers >= workers)
    return [below] if below is above else [below, above]
