"""Which runs of a sweep may share this host, and how they do.

Measured times are the point of a run with real workers, and a run beside it would take some of
them. Simulated workers are one process a run: as many run side by side as there are cores, within
memory. Where one of them measures, the others stand still (`host.quiet`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.study import StudyRun
from host.commands import say
from host.cores import usable_cores
from host.errors import UserError
from host.forks.side_by_side import side_by_side, tell
from host.remaining import Work
from host.words import counted

Run = TypeVar("Run")
Answer = TypeVar("Answer")


def needs_host(config: DictConfig) -> bool:
    """Whether a run of `config` measures what another run beside it would change: all but simulated
    workers on CPUs.
    """
    backend = config.backend
    is_simulated = backend.get("process_group", "") is None
    return not is_simulated or (config.device or backend.device) != "cpu"


def jobs_at_once(config: DictConfig) -> int:
    """The runs of `config` that may share this host: a core for each, or one."""
    if needs_host(config):
        return 1
    sharing = config.cluster.sharing
    if not isinstance(sharing, int) or sharing < 1:
        return 1  # each run says what is wrong with it
    return max(1, len(os.sched_getaffinity(0)) // sharing)


def fitting(configs: Iterable[Mapping[str, Any]]) -> int:
    """How many runs of these configurations may be at work at once here: one on each core, where
    workers are simulated, and as many as memory is for, by one run of each kind.
    """
    at_once, seen = usable_cores(), set[tuple[object, ...]]()
    for config in configs:
        names = config["names"]
        kind = (
            *(names[part] for part in ("algo", "model", "task", "optim")),
            *(config[key] for key in ("workers", "batch_size", "accumulate", "precision")),
        )
        if at_once > 1 and kind not in seen:
            seen.add(kind)
            at_once = min(at_once, _fitting_alike(OmegaConf.create(dict(config)), at_once))
    return at_once


def _fitting_alike(config: DictConfig, at_most: int) -> int:
    """How many runs of one configuration may be at work at once."""
    import torch

    from experiments.plan.factory import make_plan
    from experiments.simulated.memory.fitting import fitting_alone

    at_most = min(at_most, jobs_at_once(config))
    if at_most > 1:
        torch.set_num_threads(1)  # a pool of threads would not survive the forks
        with suppress(UserError, OmegaConfBaseException):  # the run says it
            at_most = min(at_most, fitting_alone(make_plan(config, Path())))
    return at_most


REPLAYED = 0.01
"""What a run takes whose training another one has made, relative to that."""


def run_groups(
    groups: Sequence[Sequence[Run]],
    run: Callable[[Run], Answer],
    at_once: int,
    on_answers: Callable[[list[Answer]], None],
    sizes: Sequence[float] = (),
) -> None:
    """Give `on_answers` what `run` returns for the runs of each group, which one training serves,
    once all are known. A group is one child's, with its share of the cores; `at_once` of them are
    at work, and what is left is said. The largest by `sizes` begin. Raises as `side_by_side`.
    """
    left = _Left(groups, list(sizes) or [1.0] * len(groups), at_once)

    def take(answered: tuple[int, list[Answer]]) -> None:
        number, answers = answered
        on_answers(answers)
        left.done(number)

    works = [partial(_run_all, number, group, run) for number, group in enumerate(groups)]
    side_by_side(works, at_once, take, sizes, left.under_way)


def _run_all(
    number: int, group: Sequence[Run], run: Callable[[Run], Answer]
) -> tuple[int, list[Answer]]:
    """Those of a group, and its number."""
    from experiments.runs.progress import one_of_several

    answers: list[Answer] = []
    for place, one in enumerate(group):
        with one_of_several(lambda share, place=place: tell((place, share))):
            answers.append(run(one))
    return number, answers


class _Left:
    """What is left of groups of runs, said while they are at work."""

    def __init__(self, groups: Sequence[Sequence[Run]], sizes: list[float], at_once: int) -> None:
        self._lengths, self._sizes = [len(group) for group in groups], sizes
        self._under_way: dict[int, float] = {}
        self._num_done, self._num_runs = 0, sum(self._lengths)
        say(f"{counted(self._num_runs, 'run')}, {at_once} at a time")
        self._work = Work()
        self._work.begin("runs", sizes, at_once)

    def under_way(self, number: int, told: tuple[int, float]) -> None:
        """Of that group the run at this place is done by this share."""
        place, share = told
        done = share if place == 0 else 1 + (place - 1 + share) * REPLAYED
        whole = 1 + (self._lengths[number] - 1) * REPLAYED
        self._under_way[number] = self._sizes[number] * done / whole
        self._work.under_way(sum(self._under_way.values()))

    def done(self, number: int) -> None:
        """That group is."""
        self._num_done += self._lengths[number]
        self._under_way.pop(number, None)
        line = f"{self._num_done} of {self._num_runs} runs are done"
        self._work.done(self._sizes[number], line, sum(self._under_way.values()))


def check_side_by_side(runs: Iterable[StudyRun], launcher: DictConfig) -> None:
    """Raise `UserError` where joblib would run side by side what must not; other launchers have
    hosts of their own to share out.
    """
    if launcher.get("n_jobs", 1) != 1:
        refuse_alone(sum(run.needs_host for run in runs), "set hydra.launcher.n_jobs=1")


def refuse_alone(num_alone: int, advice: str) -> None:
    """Raise `UserError`, with this advice, where so many runs that need this host would share it,
    if they are any.
    """
    if num_alone:
        raise UserError(
            f"{num_alone} of the runs measure times, of which runs beside them on this host would "
            f"take some: {advice}, or simulate them by backend=sim"
        )
