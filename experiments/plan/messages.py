"""What the command line gets told: the choices there are, and what Hydra's errors mean in one
sentence.
"""

import difflib
import re
import traceback
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import hydra
import omegaconf
import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from experiments.plan.schema import EXPERIMENT, GROUPS, NamesSchema, Schema, TargetSchema
from experiments.tasks.target import ACCURACY
from host import commands, conf
from host.errors import first_line

_LAUNCHERS = {
    "joblib": "joblib",
    "ray": "ray",
    "submitit_slurm": "slurm",
    "submitit_local": "slurm",
}
"""Hydra's launchers that an extra brings: launcher -> extra."""

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}

_SCHEMAS = {"": Schema, "target": TargetSchema, "names": NamesSchema}
"""The places of a configuration whose keys are known."""

_WHERE = "--cfg job shows those there are, --help the groups and their choices"


def usage() -> str:
    """The help text, with every choice of every group."""
    groups = "\n".join(
        f"  {group.replace('/', '.'):<16} {', '.join(choices(group))}" for group in _groups()
    )
    program = commands.program("experiments")
    return (
        f"usage: {program} algo=CHOICE [GROUP=CHOICE] [KEY=VALUE] ...\n"
        f"       {program} -m algo=CHOICE,CHOICE ...      every combination in turn\n"
        f"       {program} -m experiment=CHOICE           a study\n\n"
        "+algo=CHOICE is the same as algo=CHOICE. A group is one part of a run, such as its\n"
        "network; its choices are files of conf/GROUP.\n\n"
        f"groups and their choices:\n{groups}\n"
        f"  {'experiment':<16} {', '.join(choices('experiment'))}\n\n"
        "keys: such as workers=2, and of what is chosen, such as net.rate_mbit=50; --cfg job\n"
        "shows them all. conf/GROUP/NAME.yaml where you start a command is a choice of your own.\n"
        "--hydra-help: Hydra's own options."
    )


def _groups() -> list[str]:
    """All groups, each before the groups of its parts, such as "algo" and "algo/topology"."""
    names = []
    for group in GROUPS:
        names += [
            group,
            *sorted(f"{group}/{part.name}" for part in (conf.PACKAGED / group).glob("*/")),
        ]
    return names


def choices(group: str) -> list[str]:
    """The names of a group's YAML files."""
    return list(conf.files(group))


def is_of_hydra(error: Exception) -> bool:
    """Whether Hydra or OmegaConf refuses something; some of their errors are Python's."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and isinstance(error, ValueError) and _is_theirs(frames[-1].filename)


def _is_theirs(file: str) -> bool:
    folders = [*hydra.__path__, *omegaconf.__path__]
    return any(Path(file).is_relative_to(folder) for folder in folders)


def sentence(error: Exception) -> str:
    """One sentence that says what is wrong and what to do."""
    text = " ".join(str(error).split())
    if match := re.match(r"invalid literal for int\(\) with base 10: (.*)", text):
        return f"{match[1]} is no place in a list: write the whole list, as in KEY=[0.9,0.95]"
    if match := re.search(r"You must specify '(\w+)'", text):
        return f"{match[1]} is missing: {_choose(match[1])}"
    if match := re.search(r"Could not find 'hydra/launcher/(\w+)'", text):
        if match[1] not in _LAUNCHERS:
            return (
                f"there is no hydra/launcher named {match[1]!r}: choose {', '.join(_LAUNCHERS)}, "
                "or leave it out"
            )
        extra = _LAUNCHERS[match[1]]
        return f"hydra/launcher={match[1]} is not installed: pip install 'relaxlab[{extra}]'"
    if match := re.search(r"Could not find '([\w/]+)/([^'/]*)'", text):
        return f"there is no {match[1]} named {match[2]!r}: {_choose(match[1])}"
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"there is no key {match[1]!r}: {_nearest(match[1])}"
    if match := re.match(r"In '([^']+)': ConfigKeyError .* not in '\w+' full_key: (\S+)", text):
        return f"conf/{match[1]}.yaml: there is no key {match[2]!r}: {_nearest(match[2])}"
    if match := re.match(r"Interpolation key '([^']+)' not found full_key: (\S+)", text):
        return f"{match[2]}=${{{match[1]}}} names no key: {_nearest(match[1])}"
    # What OmegaConf says of the place is of no use to who wrote the value.
    text = re.sub(r" full_key: (\S+)?( reference_type=\S+)?( object_type=\S+)?$", _at, text)
    if text.startswith("Error merging override") and error.__cause__:
        word = text.removeprefix("Error merging override ")
        return _wrong_type(word) or f"{word}: {first_line(error.__cause__)}"
    if match := re.match(r"Error parsing override '(.*?)' missing EQUAL", text):
        return f"{match[1]!r} is no KEY=VALUE: {_with_value(match[1])}"
    if match := re.match(r"Ambiguous value for argument '(.*?)' 1\.", text):
        return (
            f"{match[1]} has several values: with -m each is run in turn, and a list is written "
            "KEY=[VALUE,VALUE]"
        )
    if text.startswith("Error parsing override"):
        return f"{text.split(' See ')[0]}: write KEY=VALUE"
    if match := re.match(r"\w+Exception: (.*?) \^? ?See https://hydra", text):
        if match[1].startswith("--"):
            return f"there is no option {match[1]}: write {match[1].lstrip('-')}=VALUE"
        return (
            f"{match[1]} cannot be read: put quotes around a value with blanks or other signs, "
            "as in 'KEY=\"a value\"'"
        )
    return text or first_line(error.__cause__ or error)


def _at(place: re.Match[str]) -> str:
    """Where a value stands, behind what is wrong with it."""
    return f", at {place[1]}" if place[1] else ""


def _wrong_type(word: str) -> str:
    """What the key of a KEY=VALUE takes; nothing of a key without a type."""
    key, _, value = word.lstrip("+~").partition("=")
    place, _, last = key.rpartition(".")
    kinds = get_type_hints(_SCHEMAS.get(place, Schema)).get(last, Any)
    named = [name for kind, name in _KINDS.items() if kind in (kinds, *get_args(kinds))]
    return f"{key} takes {' or '.join(named)}, not {value!r}" if named else ""


def _with_value(word: str) -> str:
    """What to write for a word that is a value without its key, or a key without its value."""
    name = word.lstrip("+")
    groups = [group for group in (*GROUPS, EXPERIMENT) if name in choices(group)]
    written = " or ".join(f"{group}={name}" for group in groups)
    return f"did you mean {written}?" if groups else f"write {name}=VALUE"


def _nearest(key: str) -> str:
    """What may have been meant: a key of the app, or of what stands before the last dot."""
    if key == f"target.{ACCURACY}":
        return "write target_accuracy=VALUE"
    group, dot, name = key.rpartition(".")
    place = group.replace(".", "/")
    names = _names(place)
    if name in names:
        return f"others in conf/{place} have it; write +{key}=VALUE if the chosen one takes it"
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {group}{dot}{near[0]}?" if near else _WHERE


def _names(place: str) -> list[str]:
    """The keys of the app, of "target" and "names", or of a group such as "algo/topology"; none
    elsewhere.
    """
    if place in _SCHEMAS:
        return [field.name for field in fields(_SCHEMAS[place])]
    if place.partition("/")[0] not in GROUPS:
        return []
    names = [name for file in conf.files(place).values() for name in _keys(file)]
    return names + [part.name for part in (conf.PACKAGED / place).glob("*/")]


def _keys(file: Path) -> list[str]:
    """Of a YAML file; none of one that is another's fault."""
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        found = yaml.safe_load(file.read_text())
        return [str(key) for key in found] if isinstance(found, dict) else []
    return []


def _choose(group: str) -> str:
    """The choices of a group; of one that there is not, such as "algo/nope", the groups."""
    if names := choices(group):
        return f"choose {group}={', '.join(names)}"
    root = group.rpartition("/")[0]
    parts = {part.name for place in conf.folders() for part in (place / root).glob("*/")}
    if root and parts:
        return f"the parts of {root} are {', '.join(sorted(parts))}"
    return f"the groups are {', '.join(GROUPS)}"
