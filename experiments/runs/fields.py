"""The fields of a record's dataclass: their names and types are known from the class alone."""

import json
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints


@cache
def field_types(record: type) -> dict[str, type]:
    """The type of each field of the dataclass `record` where it is not None, in their order."""
    return {name: _type_of(hint) for name, hint in get_type_hints(record).items()}


def typed(values: Mapping[str, Any], record: type) -> dict[str, Any]:
    """`values` as plain Python values of the types of `record`'s fields, without those that are
    None. What is no field holds a number.

    Raises:
        ValueError, TypeError, OverflowError: a value is not of its field's type, or a table could
            not hold it.
    """
    types = field_types(record)
    return {k: _typed(types.get(k, float), v) for k, v in values.items() if v is not None}


def decoded(text: str) -> Any:
    """What a text of JSON says. Raises `ValueError` also where a part of it is no text, such as one
    half of a letter of two.
    """
    found = json.loads(text)
    if "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _typed(kind: type, value: Any) -> Any:
    made = kind(value)
    if kind is int and not -(2**63) <= made < 2**63:
        raise OverflowError("a number has more than 64 bits")
    if kind is str and "\0" in made:
        raise ValueError("a text has a byte of zero")
    return made


def _type_of(hint: Any) -> type:
    """Of `float | None`: float; of `dict[str, int] | None`: dict."""
    (kind,) = [part for part in get_args(hint) if part is not NoneType] or [hint]
    return get_origin(kind) or kind
