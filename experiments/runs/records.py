"""What a run writes.

    config.yaml        the resolved configuration
    environment.json   versions, host, git commit, command line, start
    metrics.jsonl      a JSON object for each logged step and evaluation, while the run lasts
    metrics.parquet    the same rows, once it has ended
    summary.json       the run's row in every table

Crash-only: the first thing in the folder is a summary that says "failed", and only `finish`
replaces it. A file appears whole, by renaming, or is a journal of lines. So a run killed at any
moment reads as a failed run, with the rows it had logged.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.plan.identity import config_text
from experiments.runs.journal import append, line, read_journal, table
from experiments.runs.summary import (
    NOT_ENDED,
    UNREADABLE,
    Summary,
    read_summary,
    told_workers,
)
from experiments.training.metrics import MetricsRow
from host.environment import environment
from host.errors import DiskError, UserError
from host.output import ANOTHER_RUN_DIR, is_full, writing

FILES = ("config.yaml", "environment.json", "metrics.jsonl", "metrics.parquet", "summary.json")
"""What a run's folder has, some or all."""

RESERVE = ".reserve"
"""Room in a run's folder, while it lasts, so that on a full disk its summary can say so."""

RESERVE_BYTES = 32 * 1024


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, to be written. It holds no open file: any process may make one of a path."""

    path: Path

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        summary: Summary,
        overrides: Sequence[str] = (),
    ) -> RunFolder:
        """Starts the record of a run.

        Args:
            path: the folder; it and its parents are made where they do not exist.
            config: the resolved configuration, of plain dicts, lists and scalars.
            summary: what is known already.
            overrides: what the command line changed of the configuration.

        Raises:
            UserError: the folder already holds a run.
            DiskError: it cannot be made, or its disk is full; nothing is left of the record.
        """
        run = cls(Path(path))
        check_free(run.path)
        try:
            with writing(run.path, ANOTHER_RUN_DIR):
                run.path.mkdir(parents=True, exist_ok=True)
            run._begin(config, replace(summary, restarts=0), overrides)
        except DiskError:
            run._undo()
            raise
        return run

    @classmethod
    def reopen(
        cls,
        path: Path,
        config: Mapping[str, Any],
        summary: Summary,
        overrides: Sequence[str],
        rows: Iterable[MetricsRow],
    ) -> RunFolder:
        """Goes on with the record of a run that was ended before its time, after `rows` of its
        metrics; the rest as `create`.
        """
        run = cls(path)
        restarts = 1
        with suppress(*UNREADABLE):
            restarts += read_summary(path).restarts or 0
        with writing(path, ANOTHER_RUN_DIR):
            run._write("metrics.jsonl", "".join(line(row) for row in rows))
            run._file("metrics.parquet").unlink(missing_ok=True)
        run._begin(config, replace(summary, restarts=restarts), overrides)
        return run

    def log(self, row: MetricsRow) -> None:
        """Appends a row, which from then on survives the death of this process.

        Raises:
            ValueError, TypeError: a value is not of its column's type.
            DiskError: it cannot be written; no part of it is.
        """
        text = line(row).encode()
        with writing(self.path, ANOTHER_RUN_DIR):
            assert not self._file("metrics.parquet").exists(), "log() after finish()"
            self._file("summary.json").stat()  # where the folder is gone, no part comes back
            append(self._file("metrics.jsonl"), text)

    def finish(self, summary: Summary) -> None:
        """Ends the record: the metrics in one table, and `summary`, which has a status, for the one
        so far. `restarts` stay as counted here.

        It may be called again, also after a kill at any moment. On a full disk the metrics stay as
        they were logged. Raises `DiskError` where nothing can be written.
        """
        assert summary.status is not None, "a finished run has a status"
        with writing(self.path, ANOTHER_RUN_DIR):
            self._file(RESERVE).unlink(missing_ok=True)
            restarts = read_summary(self.path).restarts  # where it is gone, no part comes back
            self._tabulate()
            self._write_summary(replace(summary, restarts=restarts))

    def _tabulate(self) -> None:
        """The journal as one table, which takes its place where it fits."""
        journal = self._file("metrics.jsonl")
        if not journal.exists() and self._file("metrics.parquet").exists():
            return
        rows = read_journal(journal, []) if journal.exists() else []
        try:
            self._write_parquet(rows)
        except OSError as error:
            if not is_full(error):
                raise
            self._file("metrics.parquet.tmp").unlink(missing_ok=True)
        else:
            journal.unlink(missing_ok=True)

    def _begin(self, config: Mapping[str, Any], summary: Summary, overrides: Sequence[str]) -> None:
        with writing(self.path, ANOTHER_RUN_DIR):
            self._write_summary(replace(summary, status="failed", reason=NOT_ENDED))
            changes = told_workers(summary.workers_over_time)
            head = "" if changes is None else f"# {changes}\n"
            self._write("config.yaml", head + config_text(config))
            self._write_json("environment.json", environment() | {"overrides": list(overrides)})
            # Random, since some disks keep zeros in no room at all.
            self._file(RESERVE).write_bytes(os.urandom(RESERVE_BYTES))

    def _undo(self) -> None:
        """Delete what `_begin` has written before it failed; what is another's stays."""
        with suppress(OSError):
            for name in (RESERVE, *FILES):
                self._file(name).unlink(missing_ok=True)
                self._file(name + ".tmp").unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / name

    def _write(self, name: str, text: str) -> None:
        unfinished = self._file(name + ".tmp")
        unfinished.write_text(text)
        unfinished.replace(self._file(name))

    def _write_summary(self, summary: Summary) -> None:
        self._write_json("summary.json", asdict(summary))

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")

    def _write_parquet(self, rows: list[dict[str, Any]]) -> None:
        from pyarrow import parquet

        unfinished = self._file("metrics.parquet.tmp")
        parquet.write_table(table(rows), unfinished)
        unfinished.replace(self._file("metrics.parquet"))


def check_free(folder: Path) -> None:
    """Raise `UserError` where `folder` holds a run."""
    if (folder / "config.yaml").exists() or (folder / "summary.json").exists():
        raise UserError(f"{folder} already holds a run: choose {ANOTHER_RUN_DIR} or delete it.")


def _finite(value: Any) -> Any:
    """`value` as JSON can say it: texts of whole letters, NaN and the infinities as None, NumPy's
    scalars as Python's.
    """
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, str):  # a path that is no UTF-8 has what no text may have
        return value.encode(errors="replace").decode()
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
