"""Trials that are drawn before any has been run, equally many for every contestant.

They follow no result, so one training of a trial serves all networks. Each field of a contestant
has one trial in each of as many equal parts of its range (Latin hypercube sampling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.advise.tuning.ranges import Range, Value, override, parse_ranges
from host import conf
from host.errors import UserError

FOLDER = "contestants"
"""Of `conf/`."""

Settings = Mapping[str, Sequence[str]]
"""The words of each setting of each contestant, with spaces between them."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Who is tuned: the words of the app that all its trials have, and what they draw."""

    words: str
    ranges: Mapping[str, Range]


def read_contestants(name: str) -> dict[str, Contestant]:
    """Those of a file of conf/contestants. Raises `UserError` where it does not describe any."""
    files = conf.files(FOLDER)
    if name not in files:
        raise UserError(f"there are no contestants {name!r}: choose {', '.join(files)}")
    file = files[name]
    with conf.reading(file):
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        shared = parse_ranges(found["ranges"], file)
        return {
            str(key): Contestant(
                words=_text(one["words"]), ranges=shared | parse_ranges(one["ranges"], file)
            )
            for key, one in found["contestants"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} does not describe contestants: {error}") from error


def _text(words: object) -> str:
    """Raises `TypeError` for anything else."""
    if not isinstance(words, str):
        raise TypeError(f"{words!r} is no text of words such as algo=qsgd")
    return words


def draw(contestants: Mapping[str, Contestant], num_trials: int) -> dict[str, list[str]]:
    """The words of `num_trials` trials of each contestant, the same ones every time."""
    from scipy.stats import qmc  # takes half a second

    settings = {}
    for place, (name, contestant) in enumerate(contestants.items()):
        cube = qmc.LatinHypercube(len(contestant.ranges), rng=np.random.default_rng(place))
        quantiles = cube.random(num_trials).T.tolist()
        fields = [
            [override(field, value) for value in _values(own, row)]
            for (field, own), row in zip(contestant.ranges.items(), quantiles, strict=True)
        ]
        settings[name] = [
            " ".join([contestant.words, *(words[trial] for words in fields)])
            for trial in range(num_trials)
        ]
    return settings


def _values(own: Range, quantiles: Sequence[float]) -> list[Value]:
    """One field's in all trials. Fractions have the fewest digits, three or more, by which all are
    in the range and no two are alike.
    """
    exact = [own.at(quantile) for quantile in quantiles]
    if own.choices or own.is_whole:
        return exact
    for digits in range(3, 17):
        rounded = [float(f"{value:.{digits}g}") for value in exact]
        if len(set(rounded)) == len(rounded) and all(map(own.contains, rounded)):
            return [*rounded]
    return exact


def load_settings(file: Path) -> dict[str, list[str]]:
    """Of a file that `save_settings` has written. Raises `UserError` for any other."""
    try:
        found: Any = yaml.safe_load(file.read_text())
        if texts := [name for name, own in found.items() if isinstance(own, str)]:
            raise TypeError(f"{texts[0]} has a text, not a list of texts")
        return {str(name): [_text(words) for words in own] for name, own in found.items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, AttributeError) as error:
        raise UserError(f"{file} has no settings: {error}") from error


def save_settings(settings: Settings, file: Path, remark: str) -> None:
    """Write them as YAML; `remark` stands above them."""
    plain = {name: list(own) for name, own in settings.items()}
    file.write_text(f"# {remark}\n{yaml.safe_dump(plain, sort_keys=False, width=1_000)}")
