"""The fields of a record's dataclass: their names and types are known from the class alone."""

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
        ValueError, TypeError, OverflowError: a value is not of its field's type.
    """
    types = field_types(record)
    return {k: types.get(k, float)(v) for k, v in values.items() if v is not None}


def _type_of(hint: Any) -> type:
    """Of `float | None`: float; of `dict[str, int] | None`: dict."""
    (kind,) = [part for part in get_args(hint) if part is not NoneType] or [hint]
    return get_origin(kind) or kind
