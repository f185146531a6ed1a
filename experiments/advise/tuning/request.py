"""The command line of a search: the app's words, and a few of its own."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.advise.tuning.objectives import OBJECTIVES, Aim, Objective
from experiments.advise.tuning.ranges import (
    FOLDER,
    Range,
    Value,
    is_choice_of_files,
    override,
    read_ranges,
)
from experiments.plan.compose import compose_config
from experiments.plan.identity import config_text, identity, plain
from experiments.plan.messages import choices
from experiments.plan.overrides import Word, read_overrides
from experiments.plan.part import check_first, check_start
from experiments.tasks.target import ACCURACY
from host.errors import UserError

if TYPE_CHECKING:
    from experiments.plan.plan import Plan

SEED = 1_000
"""Of trials, unless given: others than those by which settings are scored afterwards."""

TRIALS = 30
"""How many, unless given."""

OWN = ("trials", "objective", "at_s", "ranges", "folder", "at_once")
"""The words that are the search's, not the app's."""

_OF_COUNT = ("trials", "at_once")
"""Of these, the words that go on with a search may have others."""

_OF_FIT = {"backend", "device", "model", "task"}
"""What the model, the examples and the host must fit: the defaults need not, where a search changes
one of these.
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A search, checked; nothing is started.

    Args:
        overrides: of every trial.
        fields: what may change, in the order in which it is chosen.
        defaults: what the fields are without the search, as `fields` write it.
        objectives: one, or two for the pairs of which none is worse in both.
        aim: what they are measured against.
        trials: how many, with those of earlier commands.
        folder: of the search.
        plan: of a trial with the defaults.
        configuration: of such a trial, as a few digits.
        command: that goes on with it, without the words of `_OF_COUNT`.
        only_of_search: those of `overrides` that were added for the trials.
        at_once: how many trials are at work at a time; None: as many as there is room for.
    """

    overrides: tuple[str, ...]
    fields: dict[str, Range]
    defaults: dict[str, Value]
    objectives: tuple[Objective, ...]
    aim: Aim
    trials: int
    folder: Path
    plan: Plan = field(repr=False)
    configuration: str
    command: str
    only_of_search: tuple[str, ...]
    at_once: int | None = None

    @property
    def key(self) -> str:
        """What all commands that go on with one search have in common, as text."""
        names = [objective.name for objective in self.objectives]
        return f"{self.overrides} {self.fields} {names} {self.aim.at_s} {self.configuration}"

    def config(self, values: dict[str, Value]) -> DictConfig:
        """That of the app with these values. Raises `UserError` for what does not fit."""
        return compose_config(self.overrides_with(values))

    def overrides_with(self, values: dict[str, Value]) -> list[str]:
        """The app's words for these values: files first, since their fields depend on them."""
        ordered = sorted(values, key=lambda name: not is_choice_of_files(name))
        return [*self.overrides, *(override(name, values[name]) for name in ordered)]

    def command_of(self, values: dict[str, Value]) -> str:
        """The app's command line that runs with these values; with the app's own seed, unless
        one was given.
        """
        words = [w for w in self.overrides_with(values) if w not in self.only_of_search]
        return shlex.join(["python", "-m", "experiments", *words])


def read_request(arguments: Sequence[str]) -> Request:
    """The search that a command line asks for. Raises `UserError` for what it cannot be."""
    own: dict[str, Word] = {}
    others: list[Word] = []
    for word in read_overrides(arguments):
        if word.key in OWN:
            own[word.key] = word
        elif word.has_several:
            raise UserError(f"{word.text} has several values: a search has one command, give one")
        else:
            others.append(word)
    objectives = _objectives(own.get("objective"))
    added = _added(others, objectives)
    overrides = [*(word.text for word in others), *added]
    config = compose_config(overrides)
    folder_of_names = "_".join([config.names.algo, config.names.net])
    check_first(config)
    configuration = identity(config_text(plain(config)))
    at_s, trials = _at_s(own.get("at_s"), objectives), _count(own.get("trials"))
    names = _names(own.get("ranges"), _files(objectives))
    fields, defaults = _fields(names, overrides, [word.key for word in others], config)
    if not fields:
        raise UserError(
            f"nothing is left to search: none of the fields in ranges={','.join(names)} is in this "
            "configuration without being given on the command line"
        )
    if not {name.partition(".")[0] for name in fields} & _OF_FIT:
        check_start(config)
    from experiments.plan.factory import make_plan  # which takes seconds: no mistake waits for it

    plan = make_plan(config, Path())
    if plan.resume or plan.checkpoint_every:
        raise UserError("trials have no checkpoints: leave out resume and checkpoint_every")
    _check_metric(plan, objectives)
    aim = Aim(target=plan.target, at_s=at_s)
    request = Request(
        overrides=tuple(overrides),
        fields=fields,
        defaults=defaults,
        objectives=objectives,
        aim=aim,
        trials=trials or TRIALS,
        folder=Path(),
        plan=plan,
        configuration=configuration,
        command=shlex.join(["python", "-m", "experiments.tune", *_going_on(arguments)]),
        only_of_search=tuple(added),
        at_once=_count(own.get("at_once")),
    )
    default = Path("results/tunes", f"{folder_of_names}_{identity(request.key)}")
    folder = Path(own["folder"].value) if "folder" in own else default
    return Request(**{**vars(request), "folder": folder})


def has_field(config: DictConfig, name: str) -> bool:
    """Whether the configuration has the field; one that is null may not be chosen from files."""
    group, _, last = name.rpartition(".")
    parent = OmegaConf.select(config, group) if group else config
    if not isinstance(parent, DictConfig) or last not in parent:
        return False
    return not is_choice_of_files(name) or parent[last] is not None


def _going_on(arguments: Sequence[str]) -> list[str]:
    return [word for word in arguments if _key(word) not in _OF_COUNT]


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+")


def _added(others: Sequence[Word], objectives: Sequence[Objective]) -> list[str]:
    keys = {word.key for word in others}
    ends = all(objective.ends_at_target for objective in objectives)
    added = [] if "seed" in keys else [f"seed={SEED}"]
    added += ["stop_at_target=true"] if ends and "stop_at_target" not in keys else []
    return added


def _objectives(word: Word | None) -> tuple[Objective, ...]:
    names = _names(word, ["steps_per_s"])
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(
                f"there is no objective {name!r}: choose objective={', '.join(OBJECTIVES)}, or two "
                "of them as a,b"
            )
    if len(names) > 2:
        raise UserError(f"a search has one objective or two, got {', '.join(names)}")
    return tuple(OBJECTIVES[name] for name in names)


def _names(word: Word | None, default: Sequence[str]) -> list[str]:
    return list(default) if word is None else word.chosen([])


def _files(objectives: Sequence[Objective]) -> list[str]:
    """All of conf/tune, but for the optimizer's where speed alone counts, to which it is nothing:
    a search would take any, also one that does not learn.
    """
    is_speed_alone = [objective.name for objective in objectives] == ["steps_per_s"]
    return [name for name in choices(FOLDER) if not (is_speed_alone and name == "optim")]


def _number(word: Word) -> float:
    try:
        return float(word.value)
    except ValueError as error:
        raise UserError(f"{word.key} must be a number, got {word.value}") from error


def _count(word: Word | None) -> int | None:
    if word is None:
        return None
    number = _number(word)
    if not (1 <= number < math.inf and number == int(number)):
        raise UserError(f"{word.key} must be a whole number of at least 1, got {number:g}")
    return int(number)


def _check_metric(plan: Plan, objectives: Sequence[Objective]) -> None:
    names = [objective.name for objective in objectives]
    if "accuracy_at" in names and plan.target.metric != ACCURACY:
        raise UserError(
            f"objective=accuracy_at is of accuracy, and the target is of {plan.target.metric}: "
            "leave out the target, or choose objective=time_to_accuracy, the time to any target"
        )
    if plan.target.value is None and any(objective.ends_at_target for objective in objectives):
        raise UserError(
            f"objective={names[0]} needs a target: give target_accuracy, or one such as target.loss"
        )


def _at_s(word: Word | None, objectives: Sequence[Objective]) -> float | None:
    is_needed = "accuracy_at" in [objective.name for objective in objectives]
    if word is None:
        if is_needed:
            raise UserError("objective=accuracy_at needs a time: at_s=SECONDS")
        return None
    seconds = _number(word)
    if not is_needed:
        raise UserError("at_s goes with objective=accuracy_at: leave it out")
    if not 0 < seconds < math.inf:
        raise UserError(f"at_s must be more than 0 and finite, got {seconds:g}")
    return seconds


def _fields(
    names: Sequence[str], overrides: Sequence[str], given: Sequence[str], config: DictConfig
) -> tuple[dict[str, Range], dict[str, Value]]:
    """The ranges of all fields that may be in a trial, files first, and the defaults of those that
    the configuration has.
    """
    chosen = dict(HydraConfig.get().runtime.choices)
    fixed = {name.replace("/", ".") for name in given}
    ranges: dict[str, Range] = {}
    for name in names:
        ranges |= read_ranges(name)
    ranges = {name: own for name, own in ranges.items() if name not in fixed}
    files = [name for name in ranges if is_choice_of_files(name) and has_field(config, name)]
    defaults: dict[str, Value] = {}
    for name in files:
        group = name.replace(".", "/")
        keys = [key for key in chosen if key == group or str(key).startswith(f"{group}@")]
        defaults[name] = chosen[keys[0]] if keys else None
    parents = [config]
    for name in files:
        if not any(other.startswith(f"{name}.") for other in ranges):
            continue  # another file brings no field that is searched
        for choice in ranges[name].choices:
            try:
                parents.append(compose_config([*overrides, override(name, choice)]))
            except UserError:
                continue
    others = [
        name
        for name in ranges
        if not is_choice_of_files(name) and any(has_field(parent, name) for parent in parents)
    ]
    for name in others:
        if has_field(config, name):
            defaults[name] = OmegaConf.select(config, name)
    written = {name: ranges[name].written(value) for name, value in defaults.items()}
    return {name: ranges[name] for name in (*files, *others)}, written
