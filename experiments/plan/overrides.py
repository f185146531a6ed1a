"""Overrides of a command line: how they are read, here and nowhere else, by Hydra's own parser."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException

from experiments.plan.messages import sentence
from experiments.plan.schema import EXPERIMENT, GROUPS, KEYS
from host import conf
from host.errors import UserError
from host.strangers.regular import read_text

_TRUSTED = (
    *("bagua_algos.", "netsim.conditions.", "netsim.timeline.", "torch.nn.", "torch.optim."),
    *(f"experiments.{room}." for room in ("models", "plan", "tasks", "training")),
)
"""The packages whose classes a record may name."""
OWN = "own"
"""The choice of a group for a class of the user's own."""

OPEN_GROUPS = ("model", "task")
"""The groups that have it."""

_STEPS = "schedule.total_iters"
_OPEN = (OWN, "dataset")
"""The choices that may have any key: those of a class that is not known here."""


@dataclass(frozen=True)
class Word:
    """One word of a command line: an override, such as "+net.delay_ms=1", or something else, such
    as "--cfg", which has no key.
    """

    text: str
    parsed: Override | None

    @property
    def key(self) -> str:
        """Such as "net.delay_ms"; without + and ~."""
        return "" if self.parsed is None else self.parsed.key_or_group

    @property
    def value(self) -> str:
        """What it is set to, as text: without quotes, or as it was written."""
        value = None if self.parsed is None else self.parsed.value()
        return value if isinstance(value, str) else self.text.partition("=")[2]

    @property
    def has_several(self) -> bool:
        """Whether it asks for several values, as a=1,2 or glob(...) do."""
        return self.parsed is not None and self.parsed.is_sweep_override()

    @property
    def is_pattern(self) -> bool:
        """Whether it is a glob(...)."""
        return self.parsed is not None and isinstance(self.parsed.value(), Glob)

    def is_of(self, group: str) -> bool:
        """Whether it chooses `group`, or sets a key of it."""
        return self.key == group or self.key.startswith((f"{group}.", f"{group}/"))

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The values that it asks for, each once; of glob(...), those of `names` that match."""
        assert self.parsed is not None, "only an override has values"
        match self.parsed.value():
            case Glob() as pattern:
                values = pattern.filter(list(names))
            case ChoiceSweep(list=several):
                values = list(map(str, several))
            case one:
                values = [str(one)]
        return list(dict.fromkeys(values))


@lru_cache(maxsize=4096)  # records of one study have the same words
def read_word(text: str) -> Word:
    """The word `text`; what is no override is left to the next reader."""
    try:
        return Word(text, _parser().parse_override(text))
    except HydraException:
        return Word(text, None)


def read_overrides(texts: Sequence[str]) -> list[Word]:
    """All of them, normalized. Raises `UserError` for what is no override."""
    normalized = normalize_overrides(texts)
    try:
        parsed = _parser().parse_overrides(normalized)
    except HydraException as error:
        raise UserError(sentence(error)) from error
    return [Word(text, override) for text, override in zip(normalized, parsed, strict=True)]


_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")


def values_of(texts: Sequence[str]) -> dict[str, str]:
    """The value of each key that `texts` override; the last one counts."""
    words = map(read_word, texts)
    return {word.key: word.value for word in words if word.key}


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    """`+algo=x` means `algo=x`: every group stands in the defaults list. `+max_steps=3` means
    `max_steps=3`: keys at the top, of `target` and of `names` are known, and Hydra says which are
    none. `algo.topology=ring` means `algo/topology=ring`, since `conf/algo/topology/` holds the
    choices; `{...}` stays a value. `experiment=null` means none. `model._target_=x` alone means
    `model=own` with that, so that no key of the default model stays, and keys of such a class, and
    of a Dataset's, need no + to be new.

    Raises `UserError` for a group that is set to null or a number, for a folder without a name, for
    a bare no, yes, on, off or None as a value of a part, and for steps of the constant schedule.
    """
    words = [read_word(argument) for argument in arguments]
    for word in words:
        if word.key in _FOLDERS and not word.value.strip():
            raise UserError(f"{word.key}= names no folder: write {word.key}=FOLDER")
        _check_is_no_yes(word)
    words = _without_no_experiment(words)
    _check_schedule(words)
    texts = [_normalized(word) for word in words]
    for group in OPEN_GROUPS:
        texts = _with_own(group, words, texts)
    return texts


def _without_no_experiment(words: Sequence[Word]) -> list[Word]:
    """`words` without each `experiment=null` or `~experiment`, and what it takes back."""
    left: list[Word] = []
    for word in words:
        if word.key == EXPERIMENT and word.parsed is not None and word.parsed.value() is None:
            left = [before for before in left if before.key != EXPERIMENT]
        else:
            left.append(word)
    return left


def _check_schedule(words: Sequence[Word]) -> None:
    """Raise `UserError` for steps of the default schedule, whose factor of 1 nothing else changes:
    an experiment, or a group of the user's own, may choose another schedule.
    """
    known = {"", "hydra", *GROUPS, *KEYS} - {"schedule"}
    others = [word for word in words if re.split(r"[./]", word.key)[0] not in known]
    if [word.key for word in others] == [_STEPS] and others[0].value != "0":
        raise UserError(
            f"{others[0].text} changes nothing while schedule.factor=1: give another factor, or "
            "take schedule=linear_warmup"
        )


_FOR_TEXTS = {"no": "false", "off": "false", "yes": "true", "on": "true", "None": "null"}
"""Words of YAML files and of Python, which are texts on a command line, and what is meant."""


def _check_is_no_yes(word: Word) -> None:
    """Raise `UserError` for a bare word of `_FOR_TEXTS`: as a text, "no" would count as true."""
    if "." not in word.key or word.key.startswith("hydra"):
        return  # the types of keys at the top are known, so that yes is true there
    bare = re.sub(r"""'[^']*'|"[^"]*\"""", "", word.text.partition("=")[2])
    values = re.sub(r"[^\[\](){},:]*:", "", bare) if "{" in bare else bare  # without their keys
    for part in map(str.strip, re.split(r"[\[\](){},]", values)):
        meant = _FOR_TEXTS.get(part, _FOR_TEXTS.get(part.lower()))
        if meant is not None:
            raise UserError(
                f"{word.text} sets a text, since {part} is one on a command line: write {meant}, "
                f"or quote it, as \"'{part}'\""
            )


def _with_own(group: str, words: Sequence[Word], texts: list[str]) -> list[str]:
    """`texts`, and what a class of the user's own in `group` implies."""
    chosen = [word.value for word in words if word.key == group]
    target = [word for word in words if word.key == f"{group}._target_"]
    if target and not chosen:
        own = [f"{group}={OWN}"]
        if not target[-1].has_several:  # else the records tell them apart by their configurations
            own.append(f"names.{group}={target[-1].value.rpartition('.')[2]}")
        names = [word.key for word in words]
        texts = [*(text for text in own if text.partition("=")[0] not in names), *texts]
    if not target and (not chosen or chosen[-1] not in _OPEN):
        return texts
    return [_forced(group, text) for text in texts]


def _forced(group: str, text: str) -> str:
    """`model.x=1` as `++model.x=1`."""
    return f"++{text}" if text.startswith(f"{group}.") else text


def with_saved_overrides(arguments: Sequence[str]) -> list[str]:
    """A command line's overrides, after those of the run that it goes on with, by `resume=FOLDER`.

    Raises `UserError` where there is no such run, or it names foreign code.
    """
    given = values_of(arguments)
    if given.get("resume", "null").lower() == "null":
        return list(arguments)
    if not given["resume"].strip():
        raise UserError("resume= names no folder: write resume=FOLDER, or resume=null for none")
    run = Path(given["resume"])
    try:
        saved = saved_overrides(run)
    except ValueError as error:
        raise UserError(f"resume={run}: that is no folder of a run ({error})") from error
    kept = [override for override in saved if read_word(override).key not in given]
    for override in kept:
        _check_stranger(override, run)
    return kept + list(arguments)


def saved_overrides(folder: Path) -> list[str]:
    """The words of the run in `folder`, in their order. Raises `ValueError` where none are kept."""
    file = folder / "environment.json"
    try:
        saved = json.loads(read_text(file))["overrides"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} does not say what was run: {error}") from error
    if not (isinstance(saved, list) and all(isinstance(word, str) for word in saved)):
        raise ValueError(f"{file} does not say what was run: its overrides are no list of words")
    return saved


def _check_stranger(override: str, run: Path) -> None:
    """Raise `UserError` for an override in the record of `run`, which may be a stranger's, that
    would have code run which is neither a class of this project or of torch, nor beside this
    command.
    """
    key = read_word(override).key
    if not key or key.startswith("hydra"):  # without a key: an option such as --config-dir
        raise UserError(f"resume={run} sets {override}, which no run does: take another run")
    for target in re.findall(r"_target_\W*([\w.]*)", override):
        root, module = target.partition(".")[0], target.rpartition(".")[0]
        is_ours = (conf.PACKAGED.parent / root).is_dir()
        is_beside = not is_ours and any(Path(place).exists() for place in (root, f"{root}.py"))
        is_class = target.rpartition(".")[2][:1].isupper()
        if not is_beside and not (is_class and _is_trusted(module)):
            raise UserError(
                f"resume={run} would run code of {module!r}, as its record says ({override}): give "
                "that override yourself if you trust it"
            )


def _is_trusted(module: str) -> bool:
    """Whether it is a module, not what some module has imported, of `_TRUSTED`."""
    if not f"{module}.".startswith(_TRUSTED):
        return False
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _normalized(word: Word) -> str:
    group = word.key.replace(".", "/")
    root = group.partition("/")[0]
    is_choice_of_files = root not in ("", "hydra") and conf.is_group(group)
    if not is_choice_of_files:
        return word.text if root in ("", "hydra", *GROUPS) else word.text.lstrip("+")
    key, _, value = word.text.removeprefix("+").partition("=")
    is_plain = key == word.key and not value.startswith("{")  # not ++algo=x, ~algo, algo@here=x
    if not is_plain:
        return word.text
    if word.value == "null" and "/" in group:
        return f"{group.replace('/', '.')}=null"  # such as cluster.jitter=null, a value
    if not _is_choice(word):
        raise UserError(_no_choice(word, group))
    # A group of the user's own stands in no defaults list.
    return f"{group}={value}" if root in (*GROUPS, EXPERIMENT) else word.text


def _no_choice(word: Word, group: str) -> str:
    """What is wrong with a word that chooses no file of `group`."""
    for folder in conf.folders():
        file = folder / group / f"{word.value}.yaml"
        if word.value and file.is_file():
            return f"{word.text} is no choice, since {word.value} is no text: rename {file}"
    return f"{word.text} is no choice: choose {word.key}={', '.join(conf.files(group))}"


def _is_choice(word: Word) -> bool:
    """Whether its value may be the name of a file, or of several; for others Hydra has no words."""
    value = None if word.parsed is None else word.parsed.value()
    values = value if isinstance(value, list) else [value]
    return not any(isinstance(one, bool | int | float | None) for one in values)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()
