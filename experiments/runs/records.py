"""What a run writes, and how to read many runs.

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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.plan.identity import config_text
from host.environment import environment
from host.errors import UserError

if TYPE_CHECKING:  # these take half a second, and a worker needs neither of them
    import pandas as pd
    import pyarrow as pa

METRICS: dict[str, type] = {
    "kind": str,  # "step" or "evaluation"
    "step": int,
    "epoch": float,
    "time_s": float,  # the training clock: it stands still during evaluations
    "loss": float,  # of the batch, in nats
    "accuracy": float,  # on the validation set
    "validation_loss": float,  # in nats a label
    "spread": float,  # of the workers' weights, at an evaluation
    "bytes_sent": int,  # a worker's, by its interface's counter
    "exposed_communication_s": float,
}
"""The columns of a metrics row. Any may be missing; a further one holds numbers."""

SUMMARY: dict[str, type] = {
    "algo": str,
    "net": str,
    "task": str,
    "model": str,
    "optim": str,
    "backend": str,  # "sim" for simulated workers
    "gpu": str,  # its model; null on CPUs
    "shared_gpu": bool,  # several workers took turns on one: how long they took is no claim
    "workers": int,
    "seed": int,
    "steps": int,
    "steps_per_s": float,
    "time_to_accuracy_s": float,  # null when the target was missed
    "target_accuracy": float,
    "lr_scale": float,
    "final_accuracy": float,  # on the test set
    "final_loss": float,  # on the test set, in nats a label
    "final_bits_per_character": float,  # final_loss / ln 2; null where labels are not characters
    "validation_accuracy": float,
    "validation_loss": float,
    "bytes_sent_per_worker": float,
    "exposed_communication_s": float,
    "achieved_rate_mbit": float,  # null when not measured
    "asked_rate_mbit": float,
    "status": str,  # "completed", "diverged" or "failed"
    "reason": str,  # null, or a sentence
    "evaluated_model": str,
    "spread": float,  # of the workers' weights about it, at the end
    "resumed_from": str,  # the folder of the run it goes on with
    "replayed_from": str,  # the run of its study whose values it has; its own are times and bytes
    "restarts": int,  # how often it went on in its own folder; what was lost is not on its clock
    "first_step_s": float,
    "duration_s": float,
}
"""The fields of `summary.json`. Each may be null."""

NOT_ENDED = "the run has not ended: it is still running, or its launcher was killed"
CTRL_C, SIGTERM = "stopped by Ctrl-C (SIGINT)", "stopped by SIGTERM"
INTERRUPTIONS = (NOT_ENDED, CTRL_C, SIGTERM)
"""Reasons of a failed run of which no cause lies in the run."""

FILES = ("config.yaml", "environment.json", "metrics.jsonl", "metrics.parquet", "summary.json")
"""What a run's folder has, some or all."""

_IDENTITY = ("algo", "net", "task", "workers", "seed")  # joined to each row of metrics


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, to be written. It holds no open file: any process may make one of a path."""

    path: Path

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        summary: Mapping[str, Any],
        overrides: Sequence[str] = (),
    ) -> RunFolder:
        """Starts the record of a run.

        Args:
            path: the folder; it and its parents are made where they do not exist.
            config: the resolved configuration, of plain dicts, lists and scalars.
            summary: the fields of `SUMMARY` that are known already.
            overrides: what the command line changed of the configuration.

        Raises:
            UserError: the folder already holds a run, or cannot be made.
        """
        run = cls(Path(path))
        if run._file("config.yaml").exists() or run._file("summary.json").exists():
            raise UserError(
                f"{path} already holds a run: choose another hydra.run.dir=... or delete it."
            )
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{path} cannot be made ({error.strerror}): choose another hydra.run.dir=..."
            ) from error
        run._begin(config, {"restarts": 0, **summary}, overrides)
        return run

    @classmethod
    def reopen(
        cls,
        path: Path,
        config: Mapping[str, Any],
        summary: Mapping[str, Any],
        overrides: Sequence[str],
        rows: Iterable[Mapping[str, Any]],
    ) -> RunFolder:
        """Goes on with the record of a run that was ended before its time, after `rows` of its
        metrics; the rest as `create`.
        """
        run = cls(path)
        restarts = 1
        with suppress(OSError, ValueError):
            restarts += json.loads(run._file("summary.json").read_text()).get("restarts") or 0
        run._write("metrics.jsonl", "".join(_line(row) for row in rows))
        run._file("metrics.parquet").unlink(missing_ok=True)
        run._begin(config, {**summary, "restarts": restarts}, overrides)
        return run

    def log(self, row: Mapping[str, Any]) -> None:
        """Appends a row of `METRICS`, which from then on survives the death of this process.

        Raises:
            ValueError, TypeError: a value is not of its column's type.
        """
        assert not self._file("metrics.parquet").exists(), "log() after finish()"
        with self._file("metrics.jsonl").open("a") as journal:
            journal.write(_line(row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the record: the metrics in one table, and `summary` over the fields known so far.

        It may be called again, also after a kill at any moment. `summary` holds the status; without
        a "reason" the reason becomes null.
        """
        assert "status" in summary, "a finished run has a status"
        journal = self._file("metrics.jsonl")
        if journal.exists():
            self._write_parquet(_read_journal(journal, []))
            journal.unlink()
        elif not self._file("metrics.parquet").exists():
            self._write_parquet([])
        known = json.loads(self._file("summary.json").read_text())
        self._write_json("summary.json", known | {"reason": None} | dict(summary))

    def _begin(
        self, config: Mapping[str, Any], summary: Mapping[str, Any], overrides: Sequence[str]
    ) -> None:
        pessimism = {"status": "failed", "reason": NOT_ENDED}
        self._write_json("summary.json", dict.fromkeys(SUMMARY) | dict(summary) | pessimism)
        self._write("config.yaml", config_text(config))
        self._write_json("environment.json", environment() | {"overrides": list(overrides)})

    def _file(self, name: str) -> Path:
        return self.path / name

    def _write(self, name: str, text: str) -> None:
        unfinished = self._file(name + ".tmp")
        unfinished.write_text(text)
        unfinished.replace(self._file(name))

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")

    def _write_parquet(self, rows: list[dict[str, Any]]) -> None:
        from pyarrow import parquet

        unfinished = self._file("metrics.parquet.tmp")
        parquet.write_table(_table(rows), unfinished)
        unfinished.replace(self._file("metrics.parquet"))


def load_runs(path: str | Path) -> pd.DataFrame:
    """One row for each run at or below `path`: its "folder" and the fields of `summary.json`.

    `attrs["problems"]` is a list of sentences on the files that could not be read.

    Raises:
        UserError: `path` is no folder.
    """
    problems: list[str] = []
    frame = _runs_frame(_read_summaries(Path(path), problems))
    frame.attrs["problems"] = problems
    return frame


def load_metrics(path: str | Path) -> pd.DataFrame:
    """All metrics rows of all runs at or below `path`, in the order in which each run logged them.

    The columns are the run's folder, algo, net, task, workers and seed, then those of `METRICS`.
    `attrs["problems"]` is a list of sentences on the files that could not be read.

    Raises:
        UserError: `path` is no folder.
    """
    return load_runs_and_metrics(path)[1]


def load_runs_and_metrics(path: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both `load_runs` and `load_metrics`, of one reading: they are of the same runs, also while
    some end. The problems of the metrics are those of all files.
    """
    import pandas as pd
    import pyarrow as pa

    problems: list[str] = []
    summaries = _read_summaries(Path(path), problems)
    runs = _runs_frame(summaries)
    of_summaries = list(problems)
    tables = [_read_metrics(Path(summary["folder"]), problems) for summary in summaries]
    rows = pa.concat_tables([_table([]), *tables], promote_options="default")
    metrics = rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    joined = runs[["folder", *_IDENTITY]]
    joined = joined.loc[joined.index.repeat([table.num_rows for table in tables])]
    metrics = pd.concat([joined.reset_index(drop=True), metrics], axis="columns")
    runs.attrs["problems"], metrics.attrs["problems"] = of_summaries, problems
    return runs, metrics


def load_rows(folder: str | Path) -> list[dict[str, Any]]:
    """The metrics rows of the run in `folder`, as logged; none where they cannot be read."""
    rows = _read_metrics(Path(folder), []).to_pylist()
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


def time_to_accuracy(rows: Iterable[Mapping[str, Any]], target: float) -> float | None:
    """The `time_s` of the first evaluation whose accuracy is at least `target`, None if none is."""
    for row in rows:
        accuracy = row.get("accuracy")
        if row.get("kind") == "evaluation" and accuracy is not None and accuracy >= target:
            return row["time_s"]
    return None


def _typed(values: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Plain Python scalars of the columns' types, without those that are None."""
    return {k: types.get(k, float)(v) for k, v in values.items() if v is not None}


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(_typed(row, METRICS)) + "\n"


def _finite(value: Any) -> Any:
    """`value` as JSON can say it: NaN and the infinities as None, NumPy's scalars as Python's."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    arrow = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    names = dict.fromkeys([*METRICS, *(name for row in rows for name in row)])
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], arrow[METRICS.get(name, float)])
            for name in names
        }
    )


def _runs_frame(summaries: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    dtypes = {"folder": "str"} | {
        name: {str: "str", int: "Int64", float: "float64", bool: "boolean"}[kind]
        for name, kind in SUMMARY.items()
    }
    names = dict.fromkeys([*dtypes, *(name for summary in summaries for name in summary)])
    return pd.DataFrame(
        {
            name: pd.Series([s.get(name) for s in summaries], dtype=dtypes.get(name, "object"))
            for name in names
        }
    )


def _read_summaries(root: Path, problems: list[str]) -> list[dict[str, Any]]:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}: name one that holds runs.")
    marks = {"summary.json", "metrics.jsonl", "metrics.parquet"}
    folders = sorted(Path(folder) for folder, _, files in os.walk(root) if marks & set(files))
    summaries = []
    for folder in folders:
        try:
            summaries.append({"folder": str(folder), **_read_summary(folder / "summary.json")})
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            problems.append(f"{folder} is left out, its summary.json cannot be read: {error}.")
    return summaries


def _read_summary(file: Path) -> dict[str, Any]:
    summary = json.loads(file.read_text())
    if not isinstance(summary, dict) or None in (summary.get("algo"), summary.get("status")):
        raise ValueError("not the summary of a run")
    known = {name: summary[name] for name in SUMMARY if name in summary}
    return summary | _typed(known, SUMMARY)


def _read_metrics(folder: Path, problems: list[str]) -> pa.Table:
    """The finished table where there is a sound one, else the journal, else no rows."""
    import pyarrow as pa
    from pyarrow import parquet

    file, journal = folder / "metrics.parquet", folder / "metrics.jsonl"
    if file.exists():
        try:
            # read_table() would make columns of a path such as .../algo=bytegrad/net=wan/...
            with parquet.ParquetFile(file) as table:
                names = table.schema_arrow.names
                if len(set(names)) < len(names):
                    raise ValueError("a column is there twice")
                return table.read(use_threads=False).cast(_schema_of(tuple(names)))
        except (OSError, ValueError, pa.ArrowException) as error:
            problems.append(f"{file} cannot be read: {error}.")
    return _table(_read_journal(journal, problems) if journal.is_file() else [])


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return _table([dict.fromkeys(names)]).select(list(names)).schema


def _read_journal(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        try:
            rows.append(_typed(json.loads(line), METRICS))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            problems.append(f"{file}, line {number} cannot be read: it is torn or not a row.")
    return rows
