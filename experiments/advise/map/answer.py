"""What `locate` says of one job: where it lies, and who is first there, task by task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.advise.advice import BASELINE
from experiments.advise.grid import Grid
from experiments.advise.map.job import Job
from experiments.advise.map.standing import (
    baseline_place,
    grids,
    lead,
    model_error,
    sent_by,
    trained_near,
)
from experiments.advise.map.times import step_s
from experiments.advise.map.trainings import Array, Trained, load
from experiments.report.statistics import Interval
from host.words import counted, listed, significant

_SHOWN = 5
"""The algorithms of a table, at least."""


class Answer:
    """Of one job, by the trainings of one task with so many workers."""

    def __init__(self, job: Job, trained: Trained) -> None:
        self.job = job
        self.trained = trained
        self._grids = grids(trained, [[job]])

    @property
    def title(self) -> str:
        """Which trainings these are."""
        own = self.trained
        return (
            f"{own.task}, trained with {own.workers} simulated workers of batch "
            f"{own.batch_size}, {counted(len(own.seeds), 'seed')}: first to {own.goals[0]}"
        )

    def table(self) -> Table:
        """The first algorithms, and all-reduce, at the first goal."""
        rendered = Table(title=Text(self.title, style="bold"), title_justify="left")
        for header in ("rank", "algorithm", f"times as soon as {BASELINE}", "steps", "ms a step"):
            rendered.add_column(header, justify="left" if header == "algorithm" else "right")
        for cells in self.rows():
            rendered.add_row(*map(Text, cells))
        return rendered

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of `table`; an asterisk marks the first and those that tie with it."""
        at = self._grids[0]
        times, steps = _times(at), self.trained.steps(0)
        order = sorted(times, key=lambda algo: (float(np.median(times[algo])), algo))
        best = {at.first(0, 0), *at.ties(0, 0)}
        for rank, algo in enumerate(order, 1):
            if rank > _SHOWN and algo not in best and algo != BASELINE:
                continue
            is_missed = math.isinf(np.median(times[algo]))
            a_step = step_s(sent_by(self.trained, algo, self.job.workers), self.job)
            yield (
                "-" if is_missed else str(rank),
                algo,
                _lead(times[algo], times[BASELINE]) + (" *" if algo in best else ""),
                f"{np.median(steps[algo]):g}",
                significant(1000 * a_step),
            )

    def sentences(self) -> list[str]:
        """Who is first at each target, and what of it holds at all of them."""
        said = [
            f"First to {goal}: {self.first_said(k)}." for k, goal in enumerate(self.trained.goals)
        ]
        if all(baseline_place(at.first(0, 0), at.ties(0, 0)) == "loses" for at in self._grids):
            said.append(f"{BASELINE} neither wins nor ties at any of these targets.")
        always = set.intersection(*({at.first(0, 0), *at.ties(0, 0)} for at in self._grids))
        names = sorted(name for name in always if name is not None)
        goals = self.trained.goals
        if len(goals) > 1:
            low, high = (pick(goal.accuracy for goal in goals) for pick in (min, max))
            who = f"{listed(names)} first or tied" if names else "nobody first or tied throughout"
            said.append(f"From {low:.4g} to {high:.4g}: {who}.")
        else:
            said.append(
                "The runs ended at this target, so nothing is known of who is first at harder ones."
            )
        return said

    def first_said(self, goal: int = 0) -> str:
        """Who is first to a goal, how far before all-reduce, and who ties."""
        at = self._grids[goal]
        first = at.first(0, 0)
        if first is None:
            return "missed by all"
        times, ties = _times(at), at.ties(0, 0)
        tied = f", tied with {listed(ties)}" if ties else ""
        if first == BASELINE:
            return f"{BASELINE} itself{tied}"
        is_tied = f"; {BASELINE} ties" if BASELINE in ties else ""
        return f"{first}, {_lead(times[first], times[BASELINE])}{tied}{is_tied}"


def _times(at: Grid) -> dict[str, Array]:
    """Of each algorithm, by seed, at the only point of a grid."""
    return {algo: times[:, 0, 0] for algo, times in at.times_s.items()}


def _lead(times: Array, baseline: Array) -> str:
    """Such as "3.05 (2.61 to 3.57)"."""
    if math.isinf(np.median(times)):
        return f"missed ({np.isinf(times).sum()}/{len(times)})"
    if times is baseline:
        return "1"
    ratio, interval = lead(times, baseline)
    return f"{significant(ratio)}{_between(interval)}"


def _between(interval: Interval) -> str:
    low, high = interval
    if math.isnan(low):
        return ""
    if math.isclose(low, high):
        return " (all seeds alike)"
    return f" ({significant(low)} to {significant(high)})"


def answers(job: Job, tasks: Sequence[str]) -> list[Answer]:
    """For each task one, or two where the workers lie between trained numbers. Raises `UserError`
    as `trained_near`.
    """
    return [Answer(job, trained) for task in tasks for trained in trained_near(task, job.workers)]


def where(job: Job) -> str:
    """Where a job lies, in one line."""
    loss = f"{job.loss_pct:g} % of loss" if job.loss_pct else "no loss"
    return (
        f"rho = {job.rho:.3g}, lambda = {job.lambda_:.3g}, {counted(job.workers, 'worker')}, "
        f"{loss}: an ideal all-reduce takes {job.rho:.3g} times as long as a step's compute, a "
        f"message {job.lambda_:.3g} times."
    )


def caveats(given: Sequence[Answer]) -> list[str]:
    """What the answer rests on, and what it is not."""
    job, source = given[0].job, load()[0]
    trained = [answer.trained for answer in given]
    workers = sorted({own.workers for own in trained})
    between = (
        [
            f"Nobody trained {job.workers} workers: the answer lies between the tables of "
            f"{workers[0]} and {workers[-1]}, if it changes steadily with the workers."
        ]
        if workers != [job.workers]
        else []
    )
    error = max(model_error(own, 0) for own in trained)
    return [
        *between,
        f"Simulated: steps to accuracy of {counted(source.num_runs, 'recorded run')} (small models "
        f"on {listed(sorted({own.task for own in trained}))}), times by the cost model on ideal "
        "hosts; async is left out, since its values depend on timing.",
        f"Brackets are 95 % intervals over seeds. An asterisk marks the first and its ties: the "
        f"interval, widened by the error of the times (up to {100 * error:.0f} %), holds 1.",
        "All algorithms have the same compute a step; compressing costs nothing here. Buckets and "
        "the pattern of all-reduces are the fastest for each; learning rates were tuned on the "
        "data that score, other fields not at all.",
        "It is no answer for another task, model, batch or learning rate: there algorithms take "
        "other numbers of steps.",
        *(
            [
                f"{source.num_dirty} of the {source.num_runs} runs were of a tree with changes "
                "that no commit has."
            ]
            if source.num_dirty
            else []
        ),
    ]
