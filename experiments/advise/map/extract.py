"""Takes from the records of the study `map` what the map needs of them, and depends on no network.

    map_TASK_trials/wN      the trials of one task with N workers
    map_TASK_baseline/wN    those of the setting that sets the targets, with several seeds
    map_TASK_wN             the runs that score, and the targets.yaml that they were scored by

TASK is what the map calls them: a task, or a task and a model, such as fashion_mnist_cnn.

A run that scores has the setting and the configuration of a trial, but for its seed, its examples
and its target. A trial's own targets are as many points below that setting's end on the examples
that tune. A run that diverged misses all targets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments.advise.map.sent import shapes_of
from experiments.advise.map.trainings import Goal
from experiments.advise.tuning.trials import OF_SCORING, evaluations_of, final_targets
from experiments.plan.overrides import saved_overrides, values_of
from experiments.report.configurations import check_alike, differing, read_config
from experiments.report.tuned import load_targets
from experiments.runs.load import load_config
from experiments.runs.study import Standing, read_record
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, crossing
from host.errors import UserError
from host.output import writing

FILE = Path(__file__).parent / "trainings.yaml"
COMMAND = "python -m experiments.locate --extract results/runs"

_OF_FOLDER = (
    *("workers", "batch_size", "max_steps", "eval_every"),
    *("names.task", "names.model", "model."),
)
"""What all runs of a folder have in common, of which the map keeps that of one."""
_TUNED = re.compile(r"(algo|schedule)[./=]|(lr_scale|optim)=")
"""How words begin that differ between contestants and trials; `optim.lr` is one task's own."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A record: `setting` are the words of its trial alone, such as "algo=qsgd lr_scale=2.0"."""

    folder: Path
    setting: str
    seed: int
    commit: str
    rows: Sequence[MetricsRow]

    @cached_property
    def config(self) -> dict[str, Any]:
        """As the run resolved it. Raises `UserError` where it cannot be read."""
        return load_config(self.folder)

    @property
    def called(self) -> tuple[str, str]:
        """What the map may call its task: the task, or the task and the model."""
        names = self.config["names"]
        return names["task"], f"{names['task']}_{names['model']}"

    @property
    def final(self) -> float:
        """The accuracy of the last evaluation; 0 of a run that diverged."""
        return (self.rows[-1].accuracy or 0.0) if self.rows else 0.0

    def steps_to(self, accuracy: float) -> float:
        """Where a straight line reaches it, from the last evaluation that does not to the first
        that does; the step of the first evaluation of all, if that does; inf for a miss.
        """
        return _steps_to(self.rows, accuracy)

    def steps_by_half(self, accuracy: float) -> list[float]:
        """The same, if every other evaluation were left out: the first, or the second of two."""
        return [_steps_to(self.rows[first::2], accuracy) for first in (1, 0)]

    def around(self, accuracy: float) -> tuple[float, float]:
        """The steps of these two evaluations, of which both may be the first; inf for a miss."""
        found = crossing(self.rows, Target(value=accuracy))
        return (found.before.step, found.after.step) if found else (math.inf, math.inf)


def _steps_to(rows: Sequence[MetricsRow], accuracy: float) -> float:
    found = crossing(rows, Target(value=accuracy))
    return round(found.at(found.before.step, found.after.step), 2) if found else math.inf


def extract(runs: Path, file: Path = FILE) -> None:
    """Write `file` from the records in `runs`.

    Raises `UserError` for a folder without targets or its baseline's runs, for records of a dirty
    tree, for runs that are not done, cannot be read, have no trial or another configuration than
    their trial, for two of one setting and seed, for a folder of unlike runs or of another task or
    number of workers than its name says, and where settings have other seeds than others.
    """
    folders = sorted(
        (task, int(workers), folder)
        for folder in runs.glob("map_*_w*")
        for task, workers in re.findall(r"^map_(.*)_w(\d+)$", folder.name)
    )
    if not folders:
        raise UserError(f"{runs} has no records of the study map: run its parts first")
    trained, commits, num_runs, num_trials = [], set[str](), 0, 0
    for task, workers, folder in folders:
        trials = load_records(runs / f"map_{task}_trials/w{workers}")
        scored = load_records(folder)
        _check_folder(folder, task, int(workers), scored)
        baseline = load_records(runs / f"map_{task}_baseline/w{workers}")
        if not baseline:
            raise UserError(
                f"{runs} has no map_{task}_baseline/w{workers}: run the part `baseline`"
            )
        if len(found := {run.setting for run in baseline}) > 1:
            raise UserError(
                f"{baseline[0].folder.parent} has runs of {len(found)} settings, and one sets the "
                "targets: leave its runs alone there"
            )
        tuned = final_targets(run.final for run in baseline)
        trained.append(_trained(folder, task, trials, scored, tuned))
        commits |= {run.commit for run in scored}
        num_runs, num_trials = num_runs + len(scored), num_trials + len(trials)
    source = {
        "command": COMMAND,
        "commits": sorted(commits),
        "num_runs": num_runs,
        "num_trials": num_trials,
    }
    values = {"source": source, "trained": trained}
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "# What the map keeps of the study `map`; `source` says who made it.\n"
            + yaml.safe_dump(values, sort_keys=False, width=100, default_flow_style=None)
        )


def load_records(folder: Path) -> list[Run]:
    """All records of a folder, in the order of their names. Raises `UserError` for one of a dirty
    tree, for a run that is not done, and for one that cannot be read.
    """
    return [_run(file) for file in sorted(folder.glob("*/environment.json"))]


def targets_of(folder: Path) -> dict[float, float]:
    """The accuracies by points below. Raises `UserError` as `load_targets`, and without a file."""
    if not (targets := load_targets(folder)):
        raise UserError(f"{folder} has no targets.yaml: copy there the one that its runs score by")
    return targets


def _run(file: Path) -> Run:
    try:
        words = saved_overrides(file.parent)
    except ValueError as error:
        raise UserError(f"{error}: leave that run out") from error
    try:
        environment, seed = json.loads(file.read_text()), int(values_of(words)["seed"])
        is_dirty, commit = environment["git_dirty"], str(environment["git_commit"])
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{file} does not say its seed or its commit ({error}): leave that run out"
        ) from error
    if is_dirty:
        raise UserError(f"{file.parent} is of a dirty tree: run it again from a commit")
    record = read_record(file.parent, is_held=False)
    if record is None or record.standing is not Standing.DONE:
        raise UserError(f"{file.parent} is not done: its command goes on with what is left")
    return Run(
        folder=file.parent,
        setting=_setting(words),
        seed=seed,
        commit=commit,
        rows=evaluations_of(file.parent, record.status),
    )


def _check_folder(folder: Path, task: str, workers: int, scored: Sequence[Run]) -> None:
    """Raises `UserError` where there are no runs, where they differ in what the map keeps once for
    all of them, and where they are of another task or number of workers than their folder says.
    """
    if not scored:
        raise UserError(f"{folder} has no runs: run the part that scores")
    first = scored[0]
    if (found := first.config["workers"]) != workers:
        raise UserError(f"{first.folder} is of workers={found}: move it out of {folder.name}")
    if task not in first.called:
        names = first.config["names"]
        raise UserError(
            f"{first.folder} is of task={names['task']} model={names['model']}: move it out of "
            f"{folder.name}"
        )
    frame = pd.DataFrame({"folder": [str(run.folder) for run in scored]})
    check_alike(frame, called=f"the runs in {folder}", only=_OF_FOLDER)


def _trained(
    folder: Path,
    task: str,
    trials: Sequence[Run],
    scored: Sequence[Run],
    tuned: Mapping[float, float],
) -> dict[str, Any]:
    """What the map keeps of the runs that score; `tuned` are the targets of their trials."""
    easiest_first = sorted(targets_of(folder).items(), reverse=True)
    by_setting: dict[str, list[Run]] = {}
    for run in scored:
        by_setting.setdefault(run.setting, []).append(run)
    goals = [
        Goal(points=points, accuracy=target, error=steps_error(by_setting.values(), target))
        for points, target in easiest_first
    ]
    seeds = sorted({run.seed for run in scored})
    first = scored[0].config
    optims: dict[str, Any] = {}
    trainings = [
        _training(own, _trial(setting, trials, own, folder), seeds, goals, tuned, optims)
        for setting, own in by_setting.items()
    ]
    return {
        "task": task,
        "workers": first["workers"],
        "batch_size": first["batch_size"],
        "max_steps": first["max_steps"],
        "eval_every": first["eval_every"],
        "seeds": seeds,
        "goals": [asdict(goal) for goal in goals],
        "model": first["model"],
        "shapes": [list(shape) for shape in shapes_of(first["model"])],
        "optims": optims,
        "trainings": sorted(trainings, key=lambda own: (own["algo"], own["words"])),
    }


def steps_error(settings: Iterable[Sequence[Run]], accuracy: float) -> float:
    """By how much steps to an accuracy may be off, relative, since runs are evaluated now and then:
    the most that the steps of a setting change if every other evaluation is left out, the median of
    its seeds. Of a setting whose seeds mostly miss it by half of the evaluations, as much as from
    one evaluation to the next. Settings that mostly miss it do not count; 0 where all do. inf where
    one is there by the first evaluation.
    """
    changes = [0.0]
    for runs in settings:
        there = [run for run in runs if run.steps_to(accuracy) < math.inf]
        if 2 * len(there) <= len(runs):
            continue
        if 2 * sum(run.steps_to(accuracy) <= run.rows[0].step for run in there) > len(runs):
            return math.inf
        steps = np.array([[run.steps_to(accuracy), *run.steps_by_half(accuracy)] for run in there])
        is_there = np.isfinite(steps).all(axis=1)
        if 2 * is_there.sum() > len(there):
            logs = np.log(steps[is_there])
            changes += np.abs(np.median(logs[:, 1:] - logs[:, :1], axis=0)).tolist()
        else:
            around = np.array([run.around(accuracy) for run in there])
            changes.append(float(np.median(np.log(around[:, 1] / around[:, 0]))))
    return round(math.expm1(max(changes)), 4)


def _trial(setting: str, trials: Sequence[Run], runs: Sequence[Run], folder: Path) -> Run:
    """The trial of this setting. Raises `UserError` where there is none, and where it and the runs
    differ: the same words may mean something else at another commit.
    """
    for trial in trials:
        if set(trial.setting.split()) == set(setting.split()):
            break
    else:
        raise UserError(f"{folder} has runs of a setting that is no trial's: {setting}")
    tried = read_config(trial.folder)
    for run in runs:
        if others := sorted(differing([tried, read_config(run.folder)]) - OF_SCORING):
            raise UserError(
                f"{run.folder} and its trial, {trial.folder}, differ in {', '.join(others)}: run "
                "one of them again as the other"
            )
    return trial


def _training(
    runs: Sequence[Run],
    trial: Run,
    seeds: Sequence[int],
    goals: Sequence[Goal],
    tuned: Mapping[float, float],
    optims: dict[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Of one setting; its optimizer comes into `optims`."""
    by_seed = sorted(runs, key=lambda run: run.seed)
    words = trial.setting
    for run, other in pairwise(by_seed):
        if run.seed == other.seed:
            raise UserError(
                f"{run.folder} and {other.folder} are two runs of {words}, seed {run.seed}: keep "
                "one"
            )
    if [run.seed for run in by_seed] != list(seeds):
        found = [run.seed for run in by_seed]
        raise UserError(f"{words}: its seeds are {found}, others have {list(seeds)}")
    config = by_seed[0].config
    optims[config["names"]["optim"]] = config["optim"]
    return {
        "algo": config["names"]["algo"],
        "words": words,
        "config": config["algo"],
        "optim": config["names"]["optim"],
        "trial_steps": [trial.steps_to(tuned[goal.points]) for goal in goals],
        "steps": [[run.steps_to(goal.accuracy) for run in by_seed] for goal in goals],
    }


def _setting(words: Sequence[str]) -> str:
    """Of all words of a run; `algo/topology=ring` is `algo.topology=ring`."""
    own = (word.partition("=") for word in words if _TUNED.match(word))
    return " ".join(f"{key.replace('/', '.')}={value}" for key, _, value in own)
