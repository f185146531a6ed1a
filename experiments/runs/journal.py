"""Rows of metrics as they stand in files: a line each in metrics.jsonl, a table in metrics.parquet.

A stranger's file may lack columns, and have further ones, which hold numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.fields import decoded, field_types, typed
from experiments.training.metrics import MetricsRow
from host.strangers.regular import check_regular, read_text

if TYPE_CHECKING:  # it takes half a second, and a worker does not need it
    import pyarrow as pa


def line(row: MetricsRow) -> str:
    """The row's line of metrics.jsonl.

    Raises:
        ValueError, TypeError: a value is not of its column's type.
    """
    return json.dumps(typed(asdict(row), MetricsRow)) + "\n"


def append(file: Path, text: bytes) -> None:
    """Add a line to it, whole or not at all. Raises `OSError`."""
    with file.open("ab", buffering=0) as journal:
        begins = journal.tell()
        try:
            while text:
                text = text[journal.write(text) :]
        except OSError:
            journal.truncate(begins)
            raise


def read_journal(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without what is None; adds to `problems` a sentence on each line
    that cannot be read.
    """
    rows = []
    for number, text in enumerate(read_text(file, errors="replace").splitlines(), start=1):
        try:
            rows.append(typed(decoded(text), MetricsRow))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            problems.append(f"{file}, line {number} cannot be read: it is torn or not a row.")
    return rows


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """The columns of `MetricsRow`, then further ones of `rows`, null where a row has none."""
    import pyarrow as pa

    rows = list(rows)
    arrow = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    types = field_types(MetricsRow)
    names = dict.fromkeys([*types, *(name for row in rows for name in row)])
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], arrow[types.get(name, float)])
            for name in names
        }
    )


def read_table(file: Path) -> pa.Table:
    """The table of a metrics.parquet, its columns of the types of `table`.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it is none.
    """
    import pyarrow as pa
    from pyarrow import parquet

    check_regular(file)
    # Given a path, ParquetFile looks what kind of place it is, and takes 1.4 times as long;
    # parquet.read_table() would make columns of .../algo=bytegrad/net=wan/...
    with parquet.ParquetFile(pa.BufferReader(file.read_bytes())) as stored:
        names = stored.schema_arrow.names
        if len(set(names)) < len(names):
            raise ValueError("a column is there twice")
        return stored.read(use_threads=False).cast(_schema_of(tuple(names)))


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return table([dict.fromkeys(names)]).select(list(names)).schema
