"""What tuning left in a folder for reports: what a search has found, tuning.json; and targets that
were fixed before the folder's runs, targets.yaml.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from experiments.runs.summary import UNREADABLE
from experiments.tasks.target import ACCURACY, LOWER_IS_BETTER, Target
from host.bounded_yaml import read_mapping
from host.errors import UserError
from host.output import as_text
from host.strangers.regular import read_text
from host.words import counted, listed

FILE = "tuning.json"
TARGETS = "targets.yaml"

POINTS = (2.0, 1.0, 0.5, 0.2)
"""Hundredths by which a target is easier than the final score of the best baseline: of the score
where lower is better, else of 1.
"""


STATES = ("complete", "pruned", "failed")


@dataclass(frozen=True, kw_only=True)
class TunedTrial:
    """One trial: its number, from 0; its state, of `STATES`; the values of the fields that it
    changed; and the objectives', none where it was not completed.
    """

    number: int
    state: str
    fields: Mapping[str, Any]
    values: Sequence[float]
    is_default: bool


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A search, so far.

    Args:
        folder: of the search.
        command: goes on with it.
        objectives: the name, the unit and whether it is maximized, of each.
        trials: in the order of their numbers.
        best: numbers of trials: the best, or with two objectives all of which none is worse in
            both.
        commands: the app's command line of each of these.
        importances: of each objective, by its name: the share of each field.
    """

    folder: str
    command: str
    objectives: Sequence[tuple[str, str, bool]]
    trials: Sequence[TunedTrial]
    best: Sequence[int]
    commands: Sequence[str]
    importances: Mapping[str, Mapping[str, float]]

    @property
    def defaults(self) -> TunedTrial | None:
        """The trial of the settings without the search, where it has completed."""
        return next((t for t in self.trials if t.is_default and t.state == "complete"), None)

    def trial(self, number: int) -> TunedTrial:
        """That of this number."""
        return next(trial for trial in self.trials if trial.number == number)

    def save(self) -> None:
        """Write it into its folder. The file appears whole."""
        file = Path(self.folder, FILE)
        unfinished = file.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(file)


def load_tunings(path: str | Path) -> tuple[list[Tuning], list[str]]:
    """All searches at or below `path`, and sentences on those that could not be read."""
    found, problems = [], []
    for file in sorted(Path(path).rglob(FILE)):
        if (told := as_text(file)) != str(file):
            problems.append(f"{told} is left out, its name is not UTF-8.")
            continue
        try:
            found.append(_read(file))
        except UNREADABLE as error:
            problems.append(f"{file} cannot be read: {error}.")
    return found, problems


def said(value: float, unit: str) -> str:
    """Such as "3.21 s"; "never" for what was not reached."""
    if math.isinf(value):
        return "never"
    return f"{value:.4g} {unit}".strip()


def _read(file: Path) -> Tuning:
    """Raises one of `UNREADABLE` for what no search has written."""
    words = _mapping(json.loads(read_text(file)), "it")
    if lacking := {"trials", "objectives"} - words.keys():
        raise ValueError(f"it has no {listed(sorted(lacking))}")
    trials = [TunedTrial(**trial) for trial in _list(words["trials"], "trials")]
    objectives = [
        (str(n), str(unit), up) for n, unit, up in _list(words["objectives"], "objectives")
    ]
    own = {**words, "folder": str(file.parent), "trials": trials, "objectives": objectives}
    tuning = Tuning(**own)
    _check(tuning)
    return tuning


def _check(tuning: Tuning) -> None:
    """Raise `ValueError` for what no search has written."""
    if len(tuning.objectives) not in (1, 2):
        raise ValueError(f"a search has one objective or two, got {len(tuning.objectives)}")
    if not all(isinstance(is_maximized, bool) for _, _, is_maximized in tuning.objectives):
        raise ValueError("an objective is maximized or not: true or false")
    for trial in tuning.trials:
        _check_trial(trial, len(tuning.objectives))
    if len({trial.number for trial in tuning.trials}) < len(tuning.trials):
        raise ValueError("two trials have one number")
    complete = [trial.number for trial in tuning.trials if trial.state == "complete"]
    if others := [best for best in _list(tuning.best, "best") if best not in complete]:
        raise ValueError(f"best is {others[0]!r}, and no completed trial")
    if len(_list(tuning.commands, "commands")) != len(tuning.best):
        raise ValueError(f"best and commands must be equally many: {len(tuning.best)} are best")
    if not all(isinstance(command, str) for command in (tuning.command, *tuning.commands)):
        raise ValueError("a command must be text")
    for name, shares in _mapping(tuning.importances, "importances").items():
        if not all(map(_is_number, _mapping(shares, f"importances of {name}").values())):
            raise ValueError(f"importances of {name} must be numbers")


def _check_trial(trial: TunedTrial, num_objectives: int) -> None:
    """Raise `ValueError` for what is no trial of so many objectives."""
    if not isinstance(trial.number, int) or not _is_number(trial.number):
        raise ValueError(f"the number of a trial must be whole, got {trial.number!r}")
    name = f"trial {trial.number}"
    if trial.state not in STATES or not isinstance(trial.is_default, bool):
        raise ValueError(f"{name} must have a state, {listed(STATES)}, and is_default")
    _mapping(trial.fields, f"fields of {name}")
    number = num_objectives if trial.state == "complete" else 0
    values = _list(trial.values, f"values of {name}")
    if len(values) != number or not all(map(_is_number, values)):
        raise ValueError(f"{name} must have {counted(number, 'value')}, each a number")


def _list(found: Any, name: str) -> list[Any]:
    if not isinstance(found, list):
        raise ValueError(f"{name} must be a list")
    return found


def _mapping(found: Any, name: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a mapping")
    return found


def _is_number(value: Any) -> bool:
    """Infinite where a target was not reached."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)


def load_targets(folder: Path, metrics: Iterable[str] = (ACCURACY,)) -> dict[float, float]:
    """The scores, by how many points they are below the final score of a tuned baseline; none
    where the folder has no such file.

    Raises `UserError` for a file that holds none, or some that one of the runs' `metrics` cannot
    have, or lacks some of `POINTS`.
    """
    file = folder / TARGETS
    if not file.exists():
        return {}
    try:
        found = read_mapping(read_text(file))
        if not found:
            raise ValueError("it is no mapping")
        targets = {float(points): float(target) for points, target in found.items()}
        if not all(map(math.isfinite, [*targets, *targets.values()])):
            raise ValueError("they are finite numbers")
        for metric, value in product(LOWER_IS_BETTER.keys() & set(metrics), targets.values()):
            Target(metric=metric, value=value)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{file} has no targets, such as 1.0: 0.85 ({error})") from error
    if lacking := [f"{points:g}" for points in POINTS if points not in targets]:
        raise UserError(f"{file} has no targets {listed(lacking)} points below: add them")
    return targets


def save_targets(targets: Mapping[float, float], folder: Path, remark: str) -> None:
    """Write them into the folder; `remark` stands above them."""
    text = yaml.safe_dump(dict(targets), sort_keys=False)
    (folder / TARGETS).write_text(f"# {remark}\n{text}")
