"""Which fields a search may change, and to what: the files of conf/tune."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.plan.messages import choices
from host import conf
from host.errors import UserError

FOLDER = "tune"
"""Of `conf/`."""

Value = float | int | bool | str | None

_KEYS = {"low", "high", "log"}


@dataclass(frozen=True, kw_only=True)
class Range:
    """What one field may be: one of `choices`, else a number from `low` to `high`, both included,
    and a whole one where both are.

    Raises:
        ValueError: there is no such value.
    """

    choices: tuple[Value, ...] = ()
    low: float = math.nan
    high: float = math.nan
    log: bool = False

    def __post_init__(self) -> None:
        if self.choices:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low must be less than high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range must be above 0, got low: {self.low}")

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def contains(self, value: object) -> bool:
        """Whether a trial may have it. Numbers are compared by value: 1.0 is 1, but true is not."""
        if self.choices:
            return any(_is_same(value, choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self.is_whole and value % 1)

    def written(self, value: Value) -> Value:
        """As trials have it: 1 for 1.0 where a choice is 1, or all values are whole. What no trial
        may have stays as it is.
        """
        if isinstance(value, float) and self.is_whole and self.contains(value):
            return int(value)
        return next((choice for choice in self.choices if _is_same(value, choice)), value)

    def at(self, quantile: float) -> Value:
        """The value below which this part of the range lies, 0 <= `quantile` < 1."""
        if self.choices:
            return self.choices[int(quantile * len(self.choices))]
        low, high = (self.low, self.high + 1) if self.is_whole else (self.low, self.high)
        value = low * (high / low) ** quantile if self.log else low + quantile * (high - low)
        return min(math.floor(value) if self.is_whole else value, self.high)


def read_ranges(name: str) -> dict[str, Range]:
    """Those of a file: a name in conf/tune, or the path of a YAML of one's own.

    Raises `UserError` where there is none, or a range in it is none.
    """
    own = Path(name) if name.endswith((".yaml", ".yml")) else None
    file = own or conf.files(FOLDER).get(name, Path(name))
    if not file.is_file():
        names = ", ".join(choices(FOLDER))
        raise UserError(
            f"there are no ranges {name!r}: choose ranges={names}, or a YAML file of your own"
        )
    with conf.reading(file):
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not found:
        raise UserError(f"{file} has no ranges: write FIELD: {{low: ..., high: ...}}")
    return parse_ranges(found, file)


def parse_ranges(found: Mapping[Any, Any], file: Path) -> dict[str, Range]:
    """Those of a mapping that stands in `file`. Raises `UserError` where a range in it is none."""
    return {str(field): _range(field, words, file) for field, words in found.items()}


def is_choice_of_files(field: str) -> bool:
    """Whether the field chooses a file of `conf/`, as algo.compressor does."""
    return conf.is_group(field.replace(".", "/"))


def override(field: str, value: Value) -> str:
    """As on the app's command line."""
    match value:
        case None:
            return f"{field}=null"
        case bool():
            return f"{field}={str(value).lower()}"
    return f"{field}={value}"


def _range(field: object, words: object, file: Path) -> Range:
    try:
        if not isinstance(words, Mapping):
            raise ValueError("write {low: ..., high: ...} or {choices: [...]}")
        options: dict[str, Any] = {str(key): value for key, value in words.items()}
        if "choices" in options:
            return _of_choices(options)
        if unknown := options.keys() - _KEYS:
            raise ValueError(f"there is no {sorted(unknown)[0]!r}: write low, high, log, choices")
        numbers = [options.get("low"), options.get("high")]
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise ValueError(f"low and high must be numbers, got {numbers[0]} and {numbers[1]}")
        if not isinstance(options.get("log", False), bool):
            raise ValueError(f"log must be true or false, got {options['log']!r}")
        return Range(**options)
    except OverflowError as error:
        raise UserError(f"{file}: {field}: low and high must be below 1e308") from error
    except ValueError as error:
        raise UserError(f"{file}: {field}: {error}") from error


def _of_choices(options: Mapping[str, Any]) -> Range:
    found = options["choices"]
    if len(options) > 1 or not isinstance(found, list) or len(found) < 2:
        raise ValueError("choices must be a list of two or more, and stand alone")
    if not all(value is None or isinstance(value, Value) for value in found):
        raise ValueError(f"choices must be numbers, words, true, false or null, got {found}")
    for value in found:
        if isinstance(value, str) and _is_number(value):
            raise ValueError(
                f"{value} is text to YAML: write a number as 8 or 1.0e-4, without quotes"
            )
    if "nan" in map(str, found) or len(set(found)) < len(found):
        raise ValueError(f"no two choices may be equal, as 1 and true are, and none NaN: {found}")
    return Range(choices=tuple(found))


def _is_same(value: object, choice: Value) -> bool:
    return isinstance(value, bool) is isinstance(choice, bool) and value == choice


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
