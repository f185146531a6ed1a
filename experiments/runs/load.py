"""Many runs read back, from what `experiments.runs.records` has written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.fields import field_types
from experiments.runs.journal import read_journal, read_table, table
from experiments.runs.summary import (
    HAVE_TIMES,
    UNREADABLE,
    Summary,
    is_unended,
    read_fields,
    target_in,
    told_conditions,
    told_workers,
)
from experiments.tasks.target import ACCURACY
from experiments.training.metrics import MetricsRow, reaching
from host.errors import UserError
from host.output import as_text, check_text
from host.remaining import Work
from host.strangers.regular import read_text

if TYPE_CHECKING:  # these take half a second
    import pandas as pd
    import pyarrow as pa

READING = "reading"
"""The part of a command's work that reads runs."""

_IDENTITY = ("algo", "net", "task", "workers", "seed")  # joined to each row of metrics
_OF_TRAINING = ("algo", "task", "model", "optim", "seed")
"""What a run has in common with one that goes on with it."""
_ANOTHERS = "its metrics are another run's than its summary.json"
_ALIKE = 1e-6
"""By what part two numbers of one thing may differ: records of others may be rounded."""
_OF_REPORTS = ("label", "steps_to_accuracy", "mb_to_accuracy")
"""By these columns reports know what they have added to runs: none is a stranger's."""
_DTYPES = {str: "str", int: "Int64", float: "float64", bool: "boolean"}


def load_runs(path: str | Path) -> pd.DataFrame:
    """One row for each run at or below `path`: its "folder" and the fields of `Summary`, then those
    that a stranger's has beside them, but for those that only reports may add.

    `attrs["problems"]` is a list of sentences on the files that could not be read, `attrs["apart"]`
    one on the runs whose number of workers, network or cluster changed: they have no row, since no
    other run is like them.

    Raises:
        UserError: `path` is no folder, or not UTF-8.
    """
    problems: list[str] = []
    alike, apart = _without_changed(_read_summaries(Path(path), problems))
    frame = _runs_frame(alike)
    frame.attrs |= {"problems": problems, "apart": apart}
    return frame


def load_metrics(path: str | Path) -> pd.DataFrame:
    """All metrics rows of all runs at or below `path`, in the order in which each run logged them.

    The columns are the run's folder, algo, net, task, workers and seed, then the fields of
    `MetricsRow`. `attrs["problems"]` is a list of sentences on the files that could not be read.

    Raises:
        UserError: `path` is no folder, or not UTF-8.
    """
    return load_runs_and_metrics(path)[1]


def load_runs_and_metrics(
    path: str | Path, work: Work | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both `load_runs` and `load_metrics`, of one reading: they are of the same runs, also while
    some end. The problems of the metrics are those of all files; `attrs["apart"]` is of the runs.
    Reading them is the part `READING` of a command's `work`.
    """
    import pandas as pd
    import pyarrow as pa

    problems: list[str] = []
    summaries, apart = _without_changed(_read_summaries(Path(path), problems))
    of_summaries = list(problems)
    read = _read_all_metrics(summaries, problems, work or Work())
    tables = list(read.values())
    runs = _runs_frame([summary for summary in summaries if summary["folder"] in read])
    rows = pa.concat_tables([table([]), *tables], promote_options="default")
    joined = runs[["folder", *_IDENTITY]]
    rows = rows.drop_columns([name for name in rows.column_names if name in joined])
    metrics = rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    joined = joined.loc[joined.index.repeat([own.num_rows for own in tables])]
    metrics = pd.concat([joined.reset_index(drop=True), metrics], axis="columns")
    runs.attrs |= {"problems": of_summaries, "apart": apart}
    metrics.attrs["problems"] = problems
    return runs, metrics


def _read_all_metrics(
    summaries: list[dict[str, Any]], problems: list[str], work: Work
) -> dict[str, pa.Table]:
    """Those of each folder, but for those whose metrics are another run's."""
    at_once = max(1, len(summaries) // 100)
    parts = [summaries[i : i + at_once] for i in range(0, len(summaries), at_once)]
    work.begin(READING, [1.0] * len(parts))
    tables = {}
    for part in parts:
        for summary in part:
            folder, num_problems = summary["folder"], len(problems)
            own = _read_metrics(Path(folder), problems)
            if _is_of(own, summary, is_whole=len(problems) == num_problems):
                tables[folder] = own
            else:
                problems.append(f"{folder} is left out, {_ANOTHERS}.")
        work.done()
    return tables


def unended(runs: pd.DataFrame) -> pd.Series:
    """Which of `runs` are at work, or were stopped from outside: True of each."""
    import pandas as pd

    outcomes = zip(runs.status, runs.reason.fillna(""), strict=True)
    return pd.Series([is_unended(*outcome) for outcome in outcomes], runs.index, dtype=bool)


def find_twins(runs: pd.DataFrame, keys: list[str]) -> tuple[Any, Any] | None:
    """Two rows of `runs`, the first by `keys` and folder, that have all `keys` alike; None where no
    two have.
    """
    again = runs.loc[runs.duplicated(keys, keep=False)].sort_values([*keys, "folder"])
    return (again.iloc[0], again.iloc[1]) if len(again) else None


def load_rows(folder: str | Path) -> list[MetricsRow]:
    """The metrics rows of the run in `folder`, as logged; none where they cannot be read.

    Raises `UserError` where they are another run's than its summary.json.
    """
    problems: list[str] = []
    own, summary = _read_metrics(Path(folder), problems), {}
    with suppress(*UNREADABLE):
        summary = read_fields(Path(folder))
    if not _is_of(own, summary, is_whole=not problems):
        raise UserError(f"{folder}: {_ANOTHERS}: delete that run and run it again")
    return _rows(own)


def _rows(own: pa.Table) -> list[MetricsRow]:
    names = field_types(MetricsRow)
    return [MetricsRow(**{name: row.get(name) for name in names}) for row in own.to_pylist()]


def _is_of(own: pa.Table, summary: Mapping[str, Any], *, is_whole: bool) -> bool:
    """Whether these may be the rows of the run of a summary: they end at its step, second and loss,
    and reach its target when it did. Where not `is_whole`, the last or others may be lost.
    """
    steps, pace = summary.get("steps"), summary.get("steps_per_s")
    if not (own.num_rows and steps and pace):
        return True
    known, names = own.column_names, ("kind", "step", "time_s", "validation_loss")
    ends = [own[name][-1].as_py() if name in known else None for name in names]
    kind, step, time_s, loss = ends
    if step is None or step > steps:
        return step is None
    is_ended = (kind, step) == ("evaluation", steps)
    pairs = ((time_s, steps / pace), (loss, summary.get("validation_loss")))
    if is_ended and not all(a is None or b is None or _are_alike(a, b) for a, b in pairs):
        return False
    if summary["status"] not in HAVE_TIMES:
        return True
    return _reaches_as_told(own, summary, is_whole=is_whole, is_ended=is_ended)


def _reaches_as_told(
    own: pa.Table, summary: Mapping[str, Any], *, is_whole: bool, is_ended: bool
) -> bool:
    """Whether these rows may reach the target of a summary when it says; rows that are lost may
    have been the sooner ones.
    """
    told_s, target = summary.get("time_to_accuracy_s"), target_in(summary)
    evaluations = _evaluations(own, "accuracy" if target.metric == ACCURACY else "score")
    scored = [row for row in evaluations if row.value is not None]
    reached = reaching(scored, target)
    if reached is None:
        is_known = is_ended and is_whole and 0 < len(scored) == len(evaluations)
        return told_s is None or not is_known
    if told_s is None:
        return False
    return _are_alike(reached.time_s, told_s) or (told_s < reached.time_s and not is_whole)


def _evaluations(own: pa.Table, of_metric: str) -> list[MetricsRow]:
    """By the columns alone that say when a target is reached, since making whole rows takes longer;
    none where one of these is missing.
    """
    names = ("kind", "step", "time_s", of_metric)
    columns = [own[name].to_pylist() for name in names if name in own.column_names]
    if len(columns) < len(names):
        return []
    return [
        MetricsRow(kind=kind, step=step, time_s=time_s, **{of_metric: value})
        for kind, step, time_s, value in zip(*columns, strict=True)
        if kind == "evaluation"
    ]


def _are_alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ALIKE)


def load_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of the run in `folder`, as it resolved it, but for what it left out.

    Raises `UserError` where it cannot be read.
    """
    from host import bounded_yaml

    file = Path(folder) / "config.yaml"
    try:
        found = bounded_yaml.load(read_text(file))
        _ = found["names"]["backend"]  # the last that is written
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{file} is no whole configuration of a run ({error}): delete that run and run it again"
        ) from error
    return found


def load_environment(folder: str | Path) -> dict[str, Any]:
    """What the run in `folder` was made on and from; empty where that cannot be read."""
    try:
        found = json.loads(read_text(Path(folder) / "environment.json"))
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _runs_frame(summaries: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    dtypes = {"folder": "str"} | {
        name: _DTYPES.get(kind, "object") for name, kind in field_types(Summary).items()
    }
    names = dict.fromkeys([*dtypes, *(name for summary in summaries for name in summary)])
    for name in _OF_REPORTS:
        names.pop(name, None)
    return pd.DataFrame(
        {
            name: pd.Series([s.get(name) for s in summaries], dtype=dtypes.get(name, "object"))
            for name in names
        }
    )


def check_runs(root: str | Path) -> None:
    """Raise `UserError` where there is no such folder, or its path is not UTF-8."""
    if not Path(root).is_dir():
        raise UserError(f"There is no folder {root}: name one that holds runs.")
    check_text(Path(root).resolve())


def num_folders(root: str | Path) -> int:
    """How many folders at or below it look as if they held a run."""
    return sum(1 for _ in _folders(Path(root)))


def _folders(root: Path) -> Iterator[Path]:
    marks = {"summary.json", "metrics.jsonl", "metrics.parquet"}
    return (Path(folder) for folder, _, files in os.walk(root) if marks & set(files))


def _read_summaries(root: Path, problems: list[str]) -> list[dict[str, Any]]:
    check_runs(root)
    summaries = []
    for folder in sorted(_folders(root)):
        if (told := as_text(folder)) != str(folder):
            problems.append(f"{told} is left out, its name is not UTF-8.")
            continue
        try:
            summaries.append({**read_fields(folder), "folder": str(folder)})
        except UNREADABLE as error:
            problems.append(f"{folder} is left out, its summary.json cannot be read: {error}.")
    return _without_continued(summaries, problems)


def _without_continued(
    summaries: list[dict[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """A run that goes on with one that has not ended holds all rows of that one, and counts in its
    place.
    """
    known = {Path(summary["folder"]).resolve(): summary for summary in summaries}
    continued = {
        _earlier(folder, summary, known): summary["folder"]
        for folder, summary in known.items()
        if summary.get("resumed_from")
    }
    kept = []
    for summary in summaries:
        by = continued.get(Path(summary["folder"]).resolve())
        if by is None or summary.get("status") == "completed":
            kept.append(summary)
        else:
            problems.append(f"{summary['folder']} is left out, {by} goes on with it.")
    return kept


def _earlier(folder: Path, summary: dict[str, Any], known: dict[Path, dict[str, Any]]) -> Path:
    """The run that the one in `folder` goes on with: where its summary says, or, if no run that is
    known is there, the one of that name beside it, since records may have been moved or copied.
    """
    named = Path(summary["resumed_from"]).resolve()
    beside = folder.parent / named.name
    if named in known or beside == folder or beside not in known:
        return named
    is_same = all(known[beside].get(name) == summary.get(name) for name in _OF_TRAINING)
    return beside if is_same else named


def _without_changed(summaries: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Those of runs whose workers, network and cluster stayed, and a sentence on each other one."""
    told = [_told_changes(summary) for summary in summaries]
    pairs = list(zip(summaries, told, strict=True))
    alike = [summary for summary, changes in pairs if not changes]
    apart = [_apart(summary, changes) for summary, changes in pairs if changes]
    return alike, apart


def _told_changes(summary: dict[str, Any]) -> str:
    """Such as "its number of workers changed (2 workers, 1 after step 60)"; empty for none."""
    told = {
        "its number of workers": told_workers(summary.get("workers_over_time")),
        "its network or cluster": told_conditions(summary.get("conditions_over_time")),
    }
    return " and ".join(f"{what} changed ({how})" for what, how in told.items() if how is not None)


def _apart(summary: dict[str, Any], changes: str) -> str:
    """Such as "x: allreduce on wan is compared with no run, ...: its target took 3.1 s."."""
    reached_s = summary.get("time_to_accuracy_s")
    took = "it missed its target" if reached_s is None else f"its target took {reached_s:.1f} s"
    return (
        f"{summary['folder']}: {summary['algo']} on {summary.get('net')}, {summary['status']}, is "
        f"compared with no other run, since {changes}: {took}."
    )


def _read_metrics(folder: Path, problems: list[str]) -> pa.Table:
    """The finished table where there is a sound one, else the journal, else no rows."""
    import pyarrow as pa

    file, journal = folder / "metrics.parquet", folder / "metrics.jsonl"
    if file.exists():
        try:
            return read_table(file)
        except (OSError, ValueError, pa.ArrowException) as error:
            problems.append(f"{file} cannot be read: {error}.")
    if journal.exists():
        try:
            return table(read_journal(journal, problems))
        except OSError as error:
            problems.append(f"{journal} cannot be read: {error}.")
    return table([])
