"""After how many steps each setting of the study `map` reaches its targets.

trainings.yaml, beside this module, is all that the map keeps of the study's records: what depends
on no network. `experiments.advise.map.extract` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A target: its accuracy, and by how many points it lies below the tuned baseline's end. Steps
    to it may be off by `error`, relative: `experiments.advise.map.extract.steps_error`.
    """

    points: float
    accuracy: float
    error: float

    def __str__(self) -> str:
        return f"{self.accuracy:.4g} ({self.points:g} below)"


@dataclass(frozen=True, kw_only=True)
class Training:
    """All seeds of one setting; `steps[k]` are those until the k-th goal, inf for a miss, and
    `trial_steps[k]` those of the trial that tuned it. They are between two evaluations, and no
    whole numbers.

    `words` are the app's, of the setting alone. `config` is the algorithm's configuration, `optim`
    the name of its optimizer, one of those of `Trained`.
    """

    algo: str
    words: str
    config: Mapping[str, Any]
    optim: str
    trial_steps: tuple[float, ...]
    steps: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The trainings of one task with so many workers: of each algorithm one or more settings.

    `task` is the map's name: where a task was trained by several models, all but the first have
    that of the model in it. `goals` are from the easiest on. `model` and `optims` are of the runs'
    configurations; `shapes` are those of the model's parameters, since not every model can be made
    where the map is looked at.
    """

    task: str
    workers: int
    batch_size: int
    max_steps: int
    eval_every: int
    seeds: tuple[int, ...]
    goals: tuple[Goal, ...]
    model: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    optims: Mapping[str, Mapping[str, Any]]
    trainings: tuple[Training, ...]

    @property
    def algos(self) -> list[str]:
        """Those that were trained."""
        return list(dict.fromkeys(own.algo for own in self.trainings))

    def of(self, algo: str) -> list[Training]:
        """The settings of an algorithm."""
        return [own for own in self.trainings if own.algo == algo]

    def goal(self, points: float) -> int:
        """The place in `goals` of the one that is so many points below."""
        return next(k for k, goal in enumerate(self.goals) if goal.points == points)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the trainings come from: the command, the commits of the runs that score and how many
    they are, and how many trials tuned them.
    """

    command: str
    commits: tuple[str, ...]
    num_runs: int
    num_trials: int


@cache
def load() -> tuple[Source, tuple[Trained, ...]]:
    """All that is kept."""
    text = (resources.files("experiments.advise.map") / "trainings.yaml").read_text()
    values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    source = values["source"]
    return (
        Source(**source | {"commits": tuple(source["commits"])}),
        tuple(_trained(one) for one in values["trained"]),
    )


def tasks() -> list[str]:
    """Those of which there are trainings."""
    return list(dict.fromkeys(one.task for one in load()[1]))


def trained_workers(task: str | None = None) -> list[int]:
    """The numbers of workers with which there are trainings, of one task or of any."""
    return sorted({one.workers for one in load()[1] if task in (None, one.task)})


def _trained(values: dict[str, Any]) -> Trained:
    trainings = tuple(
        Training(
            **one
            | {"steps": tuple(map(tuple, one["steps"])), "trial_steps": tuple(one["trial_steps"])}
        )
        for one in values["trainings"]
    )
    goals = tuple(Goal(**goal) for goal in values["goals"])
    shapes = tuple(map(tuple, values["shapes"]))
    made = {
        "shapes": shapes,
        "goals": goals,
        "trainings": trainings,
        "seeds": tuple(values["seeds"]),
    }
    return Trained(**values | made)
