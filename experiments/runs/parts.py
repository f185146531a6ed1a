"""A large study as data: `conf/study/NAME.yaml` holds its parts, in the order in which they run.

    words:                  # values for ${words.NAME} in all that follows
    parts:
      NAME:
        what: a sentence    # what the part is for
        took: a phrase      # how long it took; may be left out
        common: overrides   # of each sweep and calibration of the part; may be left out
        actions: [...]

An action is one of

    sweep: overrides                    python -m experiments -m OVERRIDES
    calibrate: overrides, out: FILE     python -m experiments.calibrate OVERRIDES --out FILE
    command: module and arguments       python -m MODULE ARGUMENTS
    copy: pattern, to: FOLDER
    pack: names of folders, root: FOLDER, archive: FILE
    unpack: FILE, to: FOLDER
    actions: [...]                      with at_once: NUMBER so many commands run side by side

The first three may have a `took: DURATION` beside them, such as 40 s or 1 h 5 min: all commands of
a part, or none. What is left of the part goes by these; without them, by how many runs there are.

Overrides are written as on the command line, with spaces between them. `each: {KEY: [VALUE, ...]}`
beside an action repeats it for every combination of values, each put in the place of {KEY}. Where
some go together, such as a number of workers and how long runs with so many took, VALUE is a
mapping of several such keys: {KEY: [{workers: 8, took: 2 min}, {workers: 32, took: 5 min}]}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.runs.actions import Action, Command, Copy, Pack, SideBySide, Unpack
from host import conf
from host.errors import UserError

_PART = {"what", "took", "common", "actions"}
_DURATION = re.compile(r"(?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+) s)?")
_KEYS = {
    "sweep": set[str](),
    "calibrate": {"out"},
    "command": set[str](),
    "copy": {"to"},
    "pack": {"root", "archive"},
    "unpack": {"to"},
}
"""The kinds of actions, and what each needs besides."""
_COMMANDS = ("sweep", "calibrate", "command")


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One part of a study: what it is for, how long it took, if that is known, and what it does."""

    name: str
    what: str
    took: str
    actions: tuple[Action, ...]

    @property
    def took_s(self) -> float | None:
        """The seconds that `took` begins with, such as "1 h 34 min for ..."; without them those of
        its commands, or None.
        """
        words = _DURATION.match(self.took)
        if words is not None and words[0]:
            return _seconds(words)
        is_timed = _are_timed(self.actions) == {True}
        return sum(action.size for action in self.actions) if is_timed else None


def load_parts(study: str) -> list[StudyPart]:
    """All parts of the study, in order. Raises `UserError` where there is none of that name, or for
    a file that describes none.
    """
    studies = conf.files("study")
    if study not in studies:
        raise UserError(f"there is no study {study!r}: choose {', '.join(studies)}")
    file = studies[study]
    with conf.reading(file):
        loaded = OmegaConf.load(file)
    try:
        plain = OmegaConf.to_container(loaded, resolve=True)
        if not isinstance(plain, dict):
            raise ValueError("it has no parts")
        return [_part(str(name), part) for name, part in plain["parts"].items()]
    except (
        OmegaConfBaseException,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise UserError(f"{file} does not describe a study: {error}") from error


def choose_parts(study: str, names: list[str]) -> list[StudyPart]:
    """The parts of these names, all where none is named, in the study's order.

    Raises `UserError` for a name that it has not.
    """
    parts = load_parts(study)
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise UserError(f"the study {study} has no part {name!r}: choose {', '.join(known)}")
    return [part for part in parts if not names or part.name in names]


def _part(name: str, part: Mapping[str, Any]) -> StudyPart:
    if unknown := set(part) - _PART:
        raise ValueError(f"part {name} has the unknown key {min(unknown)!r}")
    common = part.get("common", "").split()
    try:
        actions = [a for action in part["actions"] for a in _actions(action, common, {})]
    except ValueError as error:
        raise ValueError(f"part {name} has {error}") from error
    if len(_are_timed(actions)) == 2:
        raise ValueError(f"part {name} has took beside some of its commands: give it to all")
    return StudyPart(
        name=name, what=part["what"], took=str(part.get("took", "")), actions=tuple(actions)
    )


def _are_timed(actions: Sequence[Action]) -> set[bool]:
    """Whether commands say how long they took: both, where some do; nothing without commands."""
    return {command.took_s is not None for command in _commands(actions)}


def _commands(actions: Sequence[Action]) -> Iterator[Command]:
    for action in actions:
        match action:
            case Command():
                yield action
            case SideBySide():
                yield from action.commands
            case _:
                pass


def _actions(
    action: Mapping[str, Any], common: list[str], values: Mapping[str, str]
) -> Iterator[Action]:
    """The action once for each combination of values of its `each`, beside the `values` that hold
    around it.
    """
    rest = {key: value for key, value in action.items() if key != "each"}
    for chosen in _combinations(action.get("each", {})):
        inner = {**values, **chosen}
        if "actions" in rest:
            yield from _group(rest, common, inner)
        else:
            yield _action({key: _filled(text, inner) for key, text in rest.items()}, common)


def _combinations(each: Mapping[str, list[Any]]) -> Iterator[dict[str, str]]:
    """Each combination of one value a key, of which a value that is a mapping gives its own keys.

    Raises `ValueError` where a key has no list of values, or one key has two values at once.
    """
    for key, own in each.items():
        if not isinstance(own, list):
            raise ValueError(f"each: {key}, which is no list of values")
    ways = [[v if isinstance(v, dict) else {key: v} for v in own] for key, own in each.items()]
    for chosen in product(*ways):
        pairs = [(str(key), str(value)) for own in chosen for key, value in own.items()]
        if len(combination := dict(pairs)) < len(pairs):
            raise ValueError(f"each: {', '.join(key for key, _ in pairs)}, of which one is twice")
        yield combination


def _group(
    group: Mapping[str, Any], common: list[str], values: Mapping[str, str]
) -> Iterator[Action]:
    if unknown := set(group) - {"actions", "at_once"}:
        raise ValueError(f"a group with the unknown key {min(unknown)!r}")
    actions = [a for action in group["actions"] for a in _actions(action, common, values)]
    if "at_once" not in group:
        yield from actions
        return
    at_once = group["at_once"]
    if not isinstance(at_once, int) or at_once < 1:
        raise ValueError(f"at_once={at_once}, which must be a whole number, at least 1")
    commands = tuple(action for action in actions if isinstance(action, Command))
    if len(commands) < len(actions):
        raise ValueError("what is no command in a group with at_once")
    yield SideBySide(commands=commands, at_once=at_once)


def _action(action: Mapping[str, str], common: list[str]) -> Action:
    """That of one kind. Raises `ValueError` for a kind that there is not, or keys it has not."""
    kind = next(iter(set(action) & set(_KEYS)), None)
    timed = {"took"} if kind in _COMMANDS else set[str]()
    if kind is None or set(action) - timed != {kind, *_KEYS[kind]}:
        raise ValueError(f"no action of the keys {', '.join(action)}")
    if not all(isinstance(value, str) for value in action.values()):
        raise ValueError(f"an action of the keys {', '.join(action)}, of which one is no text")
    text = action[kind]
    match kind:
        case "sweep":
            words = ("experiments", "-m", *common, *text.split())
        case "calibrate":
            words = ("experiments.calibrate", *common, *text.split(), "--out", action["out"])
        case "command":
            words = tuple(text.split())
        case "copy":
            return Copy(source=text, to=action["to"])
        case "pack":
            folders = tuple(text.split())
            return Pack(folders=folders, root=action["root"], archive=action["archive"])
        case _:
            return Unpack(archive=text, to=action["to"])
    return Command(arguments=words, took_s=_took_s(action["took"]) if "took" in action else None)


def _took_s(text: str) -> float:
    """Raises `ValueError` for what is no duration, or none that one could wait for."""
    words = _DURATION.fullmatch(text.strip())
    if words is None or not (seconds := _seconds(words)):
        raise ValueError(f"took: {text}, which is no duration such as 40 s or 1 h 5 min")
    return seconds


def _seconds(words: re.Match[str]) -> float:
    hours, minutes, seconds = (float(word or 0) for word in words.groups())
    return 3600 * hours + 60 * minutes + seconds


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text
