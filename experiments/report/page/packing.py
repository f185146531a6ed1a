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

from experiments.report.statistics import Array


def packed(data: bytes) -> str:
    """For the text of an element."""
    return b64encode(zlib.compress(data, 9)).decode()


def packed_json(value: Any) -> str:
    """A value of plain dicts, lists and scalars."""
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def packed_numbers(numbers: Array) -> str:
    """Numbers `[n]`: all of their first bytes, then all of their second ones, and so on, which
    deflate to less than number by number.
    """
    octets = np.ascontiguousarray(numbers, dtype="<f8").view(np.uint8).reshape(-1, 8)
    return packed(octets.T.tobytes())


def plain(value: Any) -> Any:
    """A scalar as JSON has it: None where it is missing, "inf" for what never came."""
    if value is None or (not isinstance(value, list | dict) and pd.isna(value)):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and math.isinf(value):
        return "inf"
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


def _said(value: Any) -> str | None:
    """As a person reads it; lists and mappings as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)
