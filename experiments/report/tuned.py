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

from experiments.tasks.target import ACCURACY, LOWER_IS_BETTER, Target
from host.bounded_yaml import read_mapping
from host.errors import UserError
from host.output import as_text
from host.words import listed

FILE = "tuning.json"
TARGETS = "targets.yaml"

POINTS = (2.0, 1.0, 0.5, 0.2)
"""Hundredths by which a target is easier than the final score of the best baseline: of the score
where lower is better, else of 1.
"""


@dataclass(frozen=True, kw_only=True)
class TunedTrial:
    """One trial: its number, from 0; "complete", "pruned" or "failed"; the values of the fields
    that it changed; and the objectives', none where it was not completed.
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
        except (OSError, ValueError, TypeError, KeyError) as error:
            problems.append(f"{file} cannot be read: {error}.")
    return found, problems


def said(value: float, unit: str) -> str:
    """Such as "3.21 s"; "never" for what was not reached."""
    if math.isinf(value):
        return "never"
    return f"{value:.4g} {unit}".strip()


def _read(file: Path) -> Tuning:
    words: dict[str, Any] = json.loads(file.read_text())
    trials = [TunedTrial(**trial) for trial in words.pop("trials")]
    objectives = [(str(n), str(unit), bool(up)) for n, unit, up in words.pop("objectives")]
    own = {**words, "folder": str(file.parent)}
    return Tuning(**own, trials=trials, objectives=objectives)


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
        found = read_mapping(file.read_text())
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
