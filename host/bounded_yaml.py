"""YAML that may be a stranger's: read quickly, with bounds on its depth and size."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import yaml

MAX_DEPTH = 100
MAX_VALUES = 10_000
"""Counted as often as aliases repeat them."""

_TOO_MANY = f"it has more than {MAX_VALUES} values"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_YAML = (yaml.YAMLError, AttributeError, LookupError)
"""The last two where a tag does not fit what it stands before, as in `!!bool x`."""
_OPENING = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


def load(text: str) -> Any:
    """What a document holds. Raises `ValueError` for what is no YAML, or is deeper than the bound,
    or larger by its aliases.
    """
    try:
        _check(text)
        return yaml.load(text, _LOADER)
    except _NO_YAML as error:
        raise ValueError(" ".join(str(error).split())) from error


def read_mapping(text: str) -> dict[str, Any]:
    """The values of a YAML mapping by their path, as {"optim.lr": 0.1} of `optim: {lr: 0.1}`; empty
    mappings have none.

    Raises `ValueError` as `load`, and for more values than the bound.
    """
    found = dict(islice(flat(load(text)), MAX_VALUES + 1))
    if len(found) > MAX_VALUES:
        raise ValueError(_TOO_MANY)
    return {path: value for path, value in found.items() if value != {}}


def _check(text: str) -> None:
    """Before it is loaded, since libyaml ends the process where its stack overflows, and since what
    aliases stand for may be more than the memory holds.
    """
    indent = max((len(line) - len(line.lstrip()) for line in text.splitlines()), default=0)
    if "*" not in text and indent + sum(map(text.count, "[{-?")) <= MAX_DEPTH:
        return  # it has no alias, and each level has one of these
    sizes: dict[str | None, int] = {}
    anchors: list[str | None] = []
    counts = [0]  # of the document, and of each collection that is open
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, _OPENING):
            anchors.append(event.anchor)
            counts.append(1)
        elif isinstance(event, _CLOSING):
            sizes[anchors.pop()] = size = counts.pop()
            counts[-1] += size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            counts[-1] += 1
        elif isinstance(event, yaml.AliasEvent):
            counts[-1] += _size(event.anchor, sizes)
            if sum(counts) > 2 * MAX_VALUES:  # with their keys
                raise ValueError(_TOO_MANY)
        if len(anchors) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _size(anchor: str, sizes: Mapping[str | None, int]) -> int:
    if anchor not in sizes:
        raise ValueError(f"*{anchor} stands for what it is in, or for nothing")
    return sizes[anchor]


def flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of mappings within mappings, each with its path, as "algo.interval"."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
