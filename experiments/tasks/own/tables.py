"""Rows of Arrow, Parquet and JSON files, as the library `datasets` of Hugging Face keeps them.

    FOLDER/**/*train*.parquet      as on the hub; also .arrow (its cache), .json and .jsonl
    FOLDER/**/*validation*.parquet

Arrow files are mapped into memory, and of Parquet one row group is kept at a time: so the data may
be larger than memory. JSON is read whole.
"""

import bisect
import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import json, parquet
from torch.utils.data import Dataset

from host.errors import UserError, first_line


class Table(Dataset[Any]):
    """The rows of some files, one after the other, as dictionaries.

    Args:
        files: of one format and the same columns.

    Raises:
        UserError: a file that is damaged.
    """

    def __init__(self, files: list[Path]) -> None:
        try:
            # Parts: a file's batches of rows, in memory or in a Parquet file's row groups.
            self._parts = [part for file in files for part in _parts(file)]
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"one of {files[0]} and its like cannot be read ({first_line(error)}): copy it anew"
            ) from error
        self._ends = list(itertools.accumulate(len(part) for part in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The row, as Python's values; raises IndexError beyond the last."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return self._parts[number].batch().slice(index - start, 1).to_pylist()[0]

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        return [value for part in self._parts for value in part.batch([name])[name].to_pylist()]


class _InMemory:
    """Rows of an Arrow file, which is mapped, or of a JSON file."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows.num_rows

    def batch(self, columns: list[str] | None = None) -> pa.Table:
        return self._rows if columns is None else self._rows.select(columns)


class _RowGroup:
    """Some rows of a Parquet file."""

    def __init__(self, file: Path, number: int, num_rows: int) -> None:
        self._file, self._number, self._num_rows = file, number, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def batch(self, columns: list[str] | None = None) -> pa.Table:
        return _row_group(self._file, self._number, tuple(columns) if columns else None)


@functools.lru_cache(maxsize=2)
def _row_group(file: Path, number: int, columns: tuple[str, ...] | None) -> pa.Table:
    # Threads of Arrow would not survive a fork.
    with parquet.ParquetFile(file) as rows:
        return rows.read_row_group(number, columns=columns, use_threads=False)


def _parts(file: Path) -> list[Any]:
    if file.suffix == ".parquet":
        with parquet.ParquetFile(file) as rows:
            groups = [rows.metadata.row_group(i).num_rows for i in range(rows.num_row_groups)]
        return [_RowGroup(file, number, num_rows) for number, num_rows in enumerate(groups)]
    if file.suffix == ".arrow":
        with pa.ipc.open_stream(pa.memory_map(str(file))) as stream:
            return [_InMemory(pa.Table.from_batches([batch])) for batch in stream]
    return [_InMemory(_of_json(file))]


def _of_json(file: Path) -> pa.Table:
    options = json.ReadOptions(use_threads=False, block_size=1 << 26)
    return json.read_json(file, read_options=options)


def text_of(row: Mapping[str, Any], column: str) -> str:
    """A column of a row; raises UserError where there is none."""
    if column not in row:
        raise UserError(f"the rows have no {column}, but {', '.join(row)}: is it another data set?")
    return str(row[column])
