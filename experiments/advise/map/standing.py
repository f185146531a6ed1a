"""Who is first at a place of the map: times to accuracy, compared by the rules of `surface`.

Each algorithm has, at each place and for each target, the setting whose trial was the soonest to it
there; where no trial gets to a target, the soonest to the next easier one. Trials have another seed
and other examples than what is compared.

Two algorithms tie by `experiments.report.statistics.is_tie`. The error of the times is the largest
of any validated network, since the map has no rate of its own, and on top of it that of steps that
lie between two evaluations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.job import Job
from experiments.advise.map.sent import Sent, can_train, sent
from experiments.advise.map.times import times_s
from experiments.advise.map.trainings import Array, Trained, Training, load
from experiments.report.statistics import (
    Interval,
    prediction_errors,
    ratio,
    ratio_interval,
)
from host.errors import UserError
from host.words import listed


def model_error(trained: Trained, goal: int) -> float:
    """By how much a time to that goal may be off, relative."""
    return (1 + max(prediction_errors().values())) * (1 + trained.goals[goal].error) - 1


def grids(alike: Sequence[Trained], jobs: Sequence[Sequence[Job]]) -> list[list[Grid]]:
    """Of each of some trainings: the times of all algorithms to each goal, of `jobs` `[r][d]` by
    rates and delays that ascend. Each job is asked of all of them before the next, since times of
    one job are shared.
    """
    times_gsrd = [
        {
            algo: np.empty((len(trained.goals), len(trained.seeds), len(jobs), len(jobs[0])))
            for algo in trained.algos
        }
        for trained in alike
    ]
    for i, row in enumerate(jobs):
        for j, job in enumerate(row):
            for trained, of_algos in zip(alike, times_gsrd, strict=True):
                for algo, times in of_algos.items():
                    times[:, :, i, j] = _times_at(trained, algo, job)[1]
    return [
        [
            Grid(
                rates_mbit=np.array([row[0].rate_mbit for row in jobs]),
                delays_ms=np.array([job.delay_ms for job in jobs[0]]),
                times_s={algo: times[goal] for algo, times in of_algos.items()},
                model_error=model_error(trained, goal),
            )
            for goal in range(len(trained.goals))
        ]
        for trained, of_algos in zip(alike, times_gsrd, strict=True)
    ]


def settings_at(trained: Trained, algo: str, job: Job) -> list[Training]:
    """The setting of an algorithm for a job and each goal."""
    settings = trained.of(algo)
    if len(settings) == 1:
        return settings * len(trained.goals)
    return _times_at(trained, algo, job)[0]


def _times_at(trained: Trained, algo: str, job: Job) -> tuple[list[Training], Array]:
    """The setting for each goal, the first of those that are equally soon, and the times `[g, s]`
    of its runs.
    """
    settings, of_trials, of_runs = trained.of(algo), [], []
    for training in settings:
        steps_gs = np.column_stack([training.trial_steps, training.steps])
        own_s = times_s(sent_by(trained, training, job.workers), job, steps_gs.ravel())
        times_gs = own_s.reshape(steps_gs.shape)
        of_trials.append(times_gs[:, 0])
        of_runs.append(times_gs[:, 1:])
    chosen = [
        min(range(len(settings)), key=lambda k: tuple(of_trials[k][goal::-1]))
        for goal in range(len(trained.goals))
    ]
    times_gs = np.array([of_runs[k][goal] for goal, k in enumerate(chosen)])
    return [settings[k] for k in chosen], times_gs


def able(trained: Trained, workers: int) -> Trained:
    """The same without the settings that cannot train so many workers, such as those that pair all
    of an odd number.
    """
    if workers == trained.workers:
        return trained
    own = [
        training
        for training in trained.trainings
        if can_train(training.config, trained.optims[training.optim], workers)
    ]
    return replace(trained, trainings=tuple(own))


def sent_by(trained: Trained, training: Training, workers: int) -> Sent:
    """What an algorithm sends by a setting between so many workers; worked out once."""
    return _sent_by(
        json.dumps([trained.shapes, training.config, trained.optims[training.optim]]), workers
    )


@cache
def _sent_by(parts: str, workers: int) -> Sent:
    shapes, algo, optim = json.loads(parts)
    return sent([tuple(shape) for shape in shapes], algo, optim, workers)


def lead(times: Array, baseline: Array) -> tuple[float, Interval]:
    """How many times as soon as the baseline, the median over seeds, with its 95 % interval, of
    times by seed.
    """
    return ratio(baseline, times, paired=True), ratio_interval(baseline, times, paired=True)


def baseline_place(first: str | None, ties: Sequence[str]) -> str:
    """Whether all-reduce "wins", "ties" or "loses" where so many are first or tie; "missed" where
    nobody is first.
    """
    if first is None:
        return "missed"
    if first == BASELINE:
        return "wins"
    return "ties" if BASELINE in ties else "loses"


def always_best(at_goals: Sequence[Grid], rate: int, delay: int) -> list[str]:
    """Those that are first, or tie, at every goal that anybody reaches, at a point by its
    indices.
    """
    firsts = [(at.first(rate, delay), at) for at in at_goals]
    best = [{first, *at.ties(rate, delay)} for first, at in firsts if first is not None]
    return sorted(set.intersection(*best)) if best else []


def baseline_loses(at_goals: Sequence[Grid], rate: int, delay: int) -> bool:
    """Whether all-reduce is neither first nor ties at any of the goals, which somebody reaches."""
    places = {baseline_place(at.first(rate, delay), at.ties(rate, delay)) for at in at_goals}
    return places - {"missed"} == {"loses"}


def trained_near(task: str, workers: int) -> list[Trained]:
    """The trainings of a task with so many workers, or with the next fewer and more ones.

    Raises `UserError` for fewer, or more, than were ever trained.
    """
    own = sorted((t for t in load()[1] if t.task == task), key=lambda t: t.workers)
    known = [t.workers for t in own]
    if not known[0] <= workers <= known[-1]:
        to = f" to {known[-1]}" if known[1:] else ""
        raise UserError(
            f"workers={workers} is beyond the trainings of {task}, which have "
            f"{listed(map(str, known))}: give {known[0]}{to}"
        )
    below = [t for t in own if t.workers <= workers][-1]
    above = next(t for t in own if t.workers >= workers)
    return [below] if below is above else [below, above]
