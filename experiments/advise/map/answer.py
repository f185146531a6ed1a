"""What `locate` says of one job: where it lies, and who is first there, task by task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.atlas import LAMBDAS, RHOS
from experiments.advise.map.job import Job
from experiments.advise.map.standing import (
    able,
    always_best,
    baseline_loses,
    grids,
    lead,
    model_error,
    sent_by,
    settings_at,
    trained_near,
)
from experiments.advise.map.times import step_s
from experiments.advise.map.trainings import Array, Trained, Training, load, trained_workers
from experiments.advise.tuning.trials import JUDGED_AT
from experiments.report.phrases import span
from experiments.report.statistics import Interval
from host.errors import UserError
from host.words import counted, listed, significant

_SHOWN = 5
"""The algorithms of a table, at least."""


class Answer:
    """Of one job, by the trainings of one task with so many workers; `left_out` are algorithms none
    of whose settings takes as many workers as the job has.
    """

    def __init__(self, job: Job, trained: Trained) -> None:
        self.job, all_algos = job, trained.algos
        self.trained = trained = able(trained, job.workers)
        self.left_out = [algo for algo in all_algos if algo not in trained.algos]
        [self._grids] = grids([trained], [[job]])
        self._goal = trained.goal(JUDGED_AT)

    @property
    def title(self) -> str:
        """Which trainings these are."""
        own = self.trained
        return (
            f"{own.task}, trained with {own.workers} simulated workers of batch "
            f"{own.batch_size}, {counted(len(own.seeds), 'seed')}: first to {own.goals[self._goal]}"
        )

    def table(self) -> Table:
        """The first algorithms, and all-reduce, at the target by which settings were chosen."""
        rendered = Table(title=Text(self.title, style="bold"), title_justify="left")
        for header in ("rank", "algorithm", f"times as soon as {BASELINE}", "steps", "ms a step"):
            rendered.add_column(header, justify="left" if header == "algorithm" else "right")
        for cells in self.rows():
            rendered.add_row(*map(Text, cells))
        return rendered

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of `table`; an asterisk marks the first and those that tie with it."""
        times, best = _times(self._grids[self._goal]), self._best()
        for rank, setting in self._shown:
            algo = setting.algo
            is_missed = math.isinf(np.median(times[algo]))
            a_step = step_s(sent_by(self.trained, setting, self.job.workers), self.job)
            yield (
                "-" if is_missed else str(rank),
                algo,
                _lead(times[algo], times[BASELINE]) + (" *" if algo in best else ""),
                "missed" if is_missed else f"{np.median(setting.steps[self._goal]):.0f}",
                significant(1000 * a_step),
            )

    def settings(self) -> list[str]:
        """By what each algorithm of `table` was trained, as words that the app takes; and for other
        targets, where that is another setting.
        """
        said = []
        for _, own in self._shown:
            targets: dict[str, list[str]] = {own.words: []}
            by_goal = settings_at(self.trained, own.algo, self.job)
            for goal, setting in zip(self.trained.goals, by_goal, strict=True):
                targets.setdefault(setting.words, []).append(f"{goal.points:g}")
            for words, points in targets.items():
                where = "" if words == own.words else f", {listed(points)} below"
                said.append(f"{own.algo}{where}: {words.removeprefix(f'algo={own.algo}').strip()}")
        return said

    def _best(self) -> set[str | None]:
        """The first and those that tie with it."""
        at = self._grids[self._goal]
        return {at.first(0, 0), *at.ties(0, 0)}

    @cached_property
    def _shown(self) -> list[tuple[int, Training]]:
        """The settings of the table's algorithms, with their ranks: of the first ones, of all that
        tie with the very first, and of all-reduce.
        """
        times, best = _times(self._grids[self._goal]), self._best()
        order = sorted(times, key=lambda algo: (float(np.median(times[algo])), algo))
        kept = {*order[:_SHOWN], *best, BASELINE}
        return [
            (rank, settings_at(self.trained, algo, self.job)[self._goal])
            for rank, algo in enumerate(order, 1)
            if algo in kept
        ]

    def sentences(self) -> list[str]:
        """Who is first at each target, and what of it holds at all of them."""
        said = [
            f"First to {goal}: {self.first_said(k)}." for k, goal in enumerate(self.trained.goals)
        ]
        if baseline_loses(self._grids, 0, 0):
            said.append(f"{BASELINE} neither wins nor ties at any of these targets.")
        pairs = zip(self.trained.goals, self._grids, strict=True)
        reached = [goal.accuracy for goal, at in pairs if at.first(0, 0) is not None]
        if reached:
            names = always_best(self._grids, 0, 0)
            who = f"{listed(names)} first or tied" if names else "nobody first or tied throughout"
            said.append(f"From {min(reached):.4g} to {max(reached):.4g}: {who}.")
        return said

    def first_said(self, goal: int | None = None) -> str:
        """Who is first to a goal, how far before all-reduce, and who ties; without one, to that by
        which settings were chosen.
        """
        return first_said(self._grids[self._goal if goal is None else goal])


def first_said(at: Grid, rate: int = 0, delay: int = 0) -> str:
    """Who is first at a point of a grid, how far before all-reduce, and who ties."""
    first = at.first(rate, delay)
    if first is None:
        return "missed by all"
    ties = at.ties(rate, delay)
    tied = f", tied with {listed(ties)}" if ties else ""
    if first == BASELINE:
        return f"{BASELINE} itself{tied}"
    is_tied = f"; {BASELINE} ties" if BASELINE in ties else ""
    times, of_baseline = (at.times_s[algo][:, rate, delay] for algo in (first, BASELINE))
    return f"{first}, {_lead(times, of_baseline)}{tied}{is_tied}"


def _times(at: Grid) -> dict[str, Array]:
    """Of each algorithm, by seed, at the only point of a grid."""
    return {algo: times[:, 0, 0] for algo, times in at.times_s.items()}


def _lead(times: Array, baseline: Array) -> str:
    """Such as "3.05 (2.61 to 3.57)"."""
    if math.isinf(np.median(times)):
        return f"missed ({np.isinf(times).sum()}/{len(times)})"
    if times is baseline:
        return "1"
    if math.isinf(np.median(baseline)):
        return f"{BASELINE} misses"
    ratio, interval = lead(times, baseline)
    return f"{significant(ratio)}{_between(interval)}"


def _between(interval: Interval) -> str:
    return " (all seeds alike)" if math.isclose(*interval) else span(*interval)


def answers(job: Job, tasks: Sequence[str]) -> list[Answer]:
    """For each task one, or two where the workers lie between trained numbers; none for a task that
    was not trained with as many workers, if another one was.

    Raises `UserError` as `trained_near` where no task was.
    """
    given, refused = [], []
    for task in tasks:
        try:
            given += [Answer(job, trained) for trained in trained_near(task, job.workers)]
        except UserError as error:
            refused.append(error)
    if not given:
        raise refused[0]
    return given


def where(job: Job) -> str:
    """Where a job lies, in one line."""
    loss = f"{job.loss_pct:g} % of loss" if job.loss_pct else "no loss"
    return (
        f"rho = {job.rho:.3g}, lambda = {job.lambda_:.3g}, {counted(job.workers, 'worker')}, "
        f"{loss}: an ideal all-reduce takes {job.rho:.3g} times as long as a step's compute, a "
        f"message {job.lambda_:.3g} times."
    )


def _unanswered(task: str, job: Job) -> str:
    known = trained_workers(task)
    return (
        f"No answer by {task}, which was trained with {listed(map(str, known))} workers, not with "
        f"{job.workers}."
    )


def _left_out(answer: Answer) -> str:
    own = answer.trained
    are, them = ("are", "them") if answer.left_out[1:] else ("is", "it")
    return (
        f"Of {own.task} with {own.workers} workers {listed(answer.left_out)} {are} left out: "
        f"no setting of {them} that was tuned takes {answer.job.workers} workers."
    )


def _outside(job: Job) -> list[str]:
    """A sentence about a job whose place is not on the map."""
    axes = (("rho", job.rho, RHOS), ("lambda", job.lambda_, LAMBDAS))
    beyond = [
        f"{name} = {at:.3g} lies outside the map, which has {places[0]:g} to {places[-1]:g}"
        for name, at, places in axes
        if not 0.999 * places[0] <= at <= 1.001 * places[-1]
    ]
    said = f"{'; '.join(beyond)}. The answer rests on settings that were chosen within."
    return [said] if beyond else []


def caveats(given: Sequence[Answer], tasks: Sequence[str]) -> list[str]:
    """What the answer rests on, which of the `tasks` have none, and what it is not."""
    job, source = given[0].job, load()[0]
    trained = [answer.trained for answer in given]
    workers = sorted({own.workers for own in trained})
    num_runs = sum(len(own.seeds) * len(own.trainings) for own in trained)
    between = (
        [
            f"Nobody trained {job.workers} workers: the answer lies between the tables of "
            f"{workers[0]} and {workers[-1]}, if it changes steadily with the workers."
        ]
        if workers != [job.workers]
        else []
    )
    error = max(model_error(own, k) for own in trained for k in range(len(own.goals)))
    return [
        *between,
        *_outside(job),
        *(_left_out(answer) for answer in given if answer.left_out),
        *(_unanswered(task, job) for task in tasks if task not in {own.task for own in trained}),
        f"Simulated: steps to accuracy of {counted(num_runs, 'recorded run')} (small models "
        f"on {listed(sorted({own.task for own in trained}))}), times by the cost model on ideal "
        "hosts; async is left out, since its values depend on timing.",
        f"Brackets are 95 % intervals over seeds. An asterisk marks the first and its ties: the "
        f"interval, widened by the error of the times (up to {100 * error:.0f} %), holds 1.",
        "All algorithms have the same compute a step; compressing costs nothing here. Buckets and "
        "the pattern of all-reduces are the fastest for each. Each has, for each target, the "
        "setting whose trial was the soonest here, of equally many trials on a task "
        f"({source.num_trials} on all), on other seeds and examples than those that score.",
        "It is no answer for another task, model or batch: there algorithms take other numbers of "
        "steps.",
    ]
