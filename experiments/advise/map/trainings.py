"""After how many steps each algorithm of the reference study reaches its targets.

trainings.yaml, beside this module, is all that the map keeps of the study's records: what depends
on no network. `experiments.advise.map.extract` makes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

Array = NDArray[np.float64]

STUDY = "study"
"""The name of the target that a study's own runs had."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A target: its accuracy, and by how many points it lies below all-reduce's final accuracy;
    None for the study's own.
    """

    accuracy: float
    points: float | None = None

    def __str__(self) -> str:
        below = "" if self.points is None else f" ({self.points:g} below)"
        return f"{self.accuracy:.4g}{below}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """All seeds of one algorithm; `steps[k]` are those until the k-th goal, inf for a miss, or None
    where the runs ended too early to tell.

    `config` is the algorithm's configuration, `optim` the name of its optimizer, one of those of
    `Trained`, and `lr` the learning rate.
    """

    algo: str
    config: Mapping[str, Any]
    optim: str
    lr: float
    steps: tuple[tuple[float, ...] | None, ...]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The trainings of one task with so many workers.

    `final` is all-reduce's final accuracy on the validation set, the median of its seeds; None
    where its runs ended at the target. `experiment` is the configuration of the app that the runs
    were made with; `model` and `optims` are of it.
    """

    task: str
    experiment: str
    workers: int
    batch_size: int
    eval_every: int
    seeds: tuple[int, ...]
    final: float | None
    goals: tuple[Goal, ...]
    model: Mapping[str, Any]
    optims: Mapping[str, Mapping[str, Any]]
    trainings: tuple[Training, ...]

    def steps(self, goal: int) -> dict[str, Array]:
        """Of each algorithm of which they are known, `[s]` by seed."""
        return {
            own.algo: np.array(steps)
            for own in self.trainings
            if (steps := own.steps[goal]) is not None
        }

    def spacing(self, goal: int) -> float:
        """By which part the steps may be too many, since runs are evaluated now and then: of the
        algorithm that takes the fewest.
        """
        fewest = min(float(np.median(steps)) for steps in self.steps(goal).values())
        return self.eval_every / fewest if fewest < math.inf else 0.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the trainings come from: the records, the commits of the runs that are read here, and
    how many of these runs came from a tree with changes that no commit has.
    """

    command: str
    commits: tuple[str, ...]
    num_runs: int
    num_dirty: int


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


def _trained(values: dict[str, Any]) -> Trained:
    goals = tuple(Goal(**goal) for goal in values["goals"])
    trainings = tuple(
        Training(**one | {"steps": tuple(None if s is None else tuple(s) for s in one["steps"])})
        for one in values["trainings"]
    )
    made = {"goals": goals, "trainings": trainings, "seeds": tuple(values["seeds"])}
    return Trained(**values | made)
