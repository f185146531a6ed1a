"""Packs what a page holds: columns whose equal values stand there once, deflated, in base64.

Base64 has no character by which anything of a record could end its element of the page. The other
side is script/unpack.js.
"""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.report.statistics import Array

MAX_LEVELS = 1 << 16
ROUNDED_DIGITS = 6


def packed(data: bytes) -> str:
    """For the text of an element."""
    return b64encode(zlib.compress(data, 9)).decode()


def packed_json(value: Any) -> str:
    """A value of plain dicts, lists and scalars."""
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def packed_numbers(numbers: Array) -> str:
    """Numbers `[n]` of 64 bits: how many levels there are, these, and which of them each number is;
    no levels and the numbers where they hardly repeat. Each part is laid out in `_planes`.
    """
    levels, codes = np.unique(numbers.view("<u8"), return_inverse=True)
    if len(levels) <= MAX_LEVELS and 2 * len(levels) <= len(numbers):
        parts = [_planes(levels), _planes(codes.astype("<u2"))]
    else:
        levels, parts = levels[:0], [_planes(numbers.view("<u8"))]
    return packed(b"".join([len(levels).to_bytes(4, "little"), *parts]))


def rounded(numbers: Array, marks: Sequence[float] = ()) -> Array:
    """To `ROUNDED_DIGITS`, in half as many bytes: what is left out is zero, and takes none.

    No number is rounded to the other side of one of `marks`, or onto one.
    """
    bits = np.ascontiguousarray(numbers, "<f8").view("<u8")
    half = np.uint64(1 << 31)
    found = ((bits + half) & ~np.uint64((1 << 32) - 1)).view("<f8")
    ordered = np.sort(np.asarray(marks, dtype=float))
    is_same = np.isfinite(numbers) & np.isfinite(found)
    for side in ("left", "right"):
        is_same &= np.searchsorted(ordered, numbers, side) == np.searchsorted(ordered, found, side)
    return np.where(is_same, found, numbers)


def _planes(values: NDArray[Any]) -> bytes:
    """All of their first bytes, then all of their second ones, and so on.

    These deflate to less than number by number.
    """
    octets = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)
    return octets.T.tobytes()


def plain(value: Any) -> Any:
    """A scalar as JSON has it: None where it is missing, "inf" or "-inf" where it is infinite."""
    if value is None or (not isinstance(value, list | dict) and pd.isna(value)):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def column(values: Iterable[Any]) -> dict[str, Any]:
    """Its distinct values, and which of them each row has: one number where all have the same."""
    places: dict[tuple[type, Any], int] = {}
    codes = [places.setdefault((type(value), value), len(places)) for value in map(plain, values)]
    levels = [value for _, value in places]
    return {"levels": levels, "codes": 0 if len(levels) == 1 else codes}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A column for each key of any of `rows`, whose values are said as text; None where a row lacks
    it. What no row has a value of is left out.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: column(_said(row.get(name)) for row in rows) for name in names}
    return {name: own for name, own in found.items() if own["levels"] != [None]}


def shared(value: Any, arrays: list[list[Any]], places: dict[str, int]) -> Any:
    """`value` with the columns in it told by their places in `arrays`, where equal ones stand once.

    `places` are those of all `arrays`, by their text.
    """
    if isinstance(value, list):
        return [shared(own, arrays, places) for own in value]
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("levels"), list):
        return {name: shared(own, arrays, places) for name, own in value.items()}
    codes = value["codes"] or [0]
    found = {}
    for name, array in (("levels", value["levels"]), ("codes", codes)):
        found[name] = places.setdefault(json.dumps(array), len(arrays))
        if found[name] == len(arrays):
            arrays.append(array)
    return value | found


def _said(value: Any) -> str | float | None:
    """As a person reads it; lists and mappings as JSON, numbers as they are where a browser has
    such.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)
