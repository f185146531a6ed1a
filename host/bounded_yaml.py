"""YAML that may be a stranger's: read quickly, with bounds on its depth and size."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml

MAX_DEPTH = 100
MAX_VALUES = 10_000
"""Counted as often as aliases repeat them."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


def read_mapping(text: str) -> dict[str, Any]:
    """The values of a YAML mapping by their path, as {"optim.lr": 0.1} of `optim: {lr: 0.1}`; empty
    mappings have none.

    Raises `ValueError` for what is no YAML, or is deeper or larger than the bounds.
    """
    try:
        _check_depth(text)
        found = dict(islice(flat(yaml.load(text, _LOADER)), MAX_VALUES + 1))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if len(found) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values")
    return {path: value for path, value in found.items() if value != {}}


def _check_depth(text: str) -> None:
    """Before it is loaded, since libyaml ends the process where its stack overflows."""
    indent = max((len(line) - len(line.lstrip()) for line in text.splitlines()), default=0)
    if indent + sum(map(text.count, "[{-?")) <= MAX_DEPTH:
        return  # each level has one of these
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of mappings within mappings, each with its path, as "algo.interval"."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
