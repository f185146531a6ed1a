"""The table of a set of runs: one row for runs that differ in nothing but their seed.

A run that missed the target counts as one that takes for ever; it is never dropped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rich.table import Table
from rich.text import Text

Row = dict[Any, Any]

# What two runs must share for their times to be comparable, and how to say it.
SITUATION = {
    "task": "{}",
    "model": "{}",
    "net": "network {}",
    "asked_rate_mbit": "{} Mbit/s asked",
    "workers": "{} workers",
    "target_accuracy": "target accuracy {}",
}
# What else tells runs apart, beside the algorithm and the seed.
DETAIL = {"backend": "{}", "optim": "optimizer {}"}
TITLE = ("task", "model", "net", "workers", "backend")
_HEADERS = {"net": "network", "asked_rate_mbit": "Mbit/s asked", "target_accuracy": "target"}
_WORDS = {"task", "model", "network", "backend", "optim", "evaluated", "algorithm", "status"}
_MEDIANS = ("final_accuracy", "steps_per_s", "exposed_communication_s", "achieved_rate_mbit")


def names(runs: pd.DataFrame) -> list[str]:
    """For each run its algorithm, with the options of its configuration that vary among such runs.

    So runs of one algorithm with `bits` of 4 and of 8 are two algorithms, not two seeds of one.
    """
    configs = {folder: _read_config(Path(folder)) for folder in runs.folder}
    varying: dict[str, set[str]] = defaultdict(set)
    for _, group in runs.groupby([*SITUATION, *DETAIL, "algo"], dropna=False):
        varying[group.algo.iloc[0]] |= _differing([configs[folder] for folder in group.folder])
    return [
        " ".join([algo, *(f"{key}={configs[folder].get(key)}" for key in sorted(varying[algo]))])
        for folder, algo in zip(runs.folder, runs.algo, strict=True)
    ]


def settings(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a setting: the runs (of `load_runs`) that differ in nothing but their seed.

    Columns: those of SITUATION and DETAIL; "name" (see `names`); "runs" and, of these, "missed";
    the medians, of which `time_to_accuracy_s` is inf where the median run missed, and `low` and
    `high`, its bootstrap interval, are NaN for fewer than three runs; "evaluated_model"; "status".
    Rows are sorted by situation, then by time to accuracy, misses last.
    """
    keys = [*SITUATION, *DETAIL, "name"]
    groups = [g for _, g in runs.assign(name=names(runs)).groupby(keys, dropna=False)]
    what = pd.concat([group[keys].head(1) for group in groups], ignore_index=True)
    table = what.join(pd.DataFrame([_outcome(group) for group in groups]))
    table = table.sort_values("final_accuracy", ascending=False)
    return table.sort_values([*SITUATION, "time_to_accuracy_s"], kind="stable", ignore_index=True)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile-bootstrap interval of the median; values and bounds may be inf."""
    sample = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(len(sample), size=(10_000, len(sample)))
    medians = np.median(sample[picks], axis=1)
    # Bounds that are medians themselves: one cannot interpolate between a number and inf.
    low, high = np.quantile(medians, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def render(table: pd.DataFrame, runs: pd.DataFrame) -> Table:
    """The rows of `settings(runs)`, to be printed; what all runs share stands above and below."""
    caption = [describe(runs, ["target_accuracy", "optim", "asked_rate_mbit"]), *_found(runs)]
    rendered = Table(
        title=Text(describe(runs, TITLE), style="bold"),
        caption=Text(", ".join(phrase for phrase in caption if phrase)),
    )
    columns = _columns(table)
    for header in columns:
        rendered.add_column(header, justify="left" if header in _WORDS else "right")
    situations = table[list(SITUATION)].astype("str").to_numpy().tolist()
    for i, cells in enumerate(zip(*columns.values(), strict=True)):
        is_last = situations[i : i + 1] != situations[i + 1 : i + 2]
        rendered.add_row(*map(Text, cells), end_section=is_last)
    return rendered


def describe(runs: pd.DataFrame, columns: Iterable[str]) -> str:
    """Says the values of those columns of SITUATION and DETAIL that have one value in all runs."""
    phrases, first = SITUATION | DETAIL, runs.iloc[0].to_dict()
    same = [c for c in columns if not varies(runs, c) and pd.notna(first[c])]
    return ", ".join(phrases[c].format(shown(c, first[c])) for c in same)


def remarks(runs: pd.DataFrame) -> list[str]:
    """A line for each run that did not complete: its folder, its status and the reason."""
    ended = runs.query("status != 'completed'").fillna({"reason": "no reason was recorded"})
    return [f"{run['folder']} {run['status']}: {run['reason']}" for run in ended.to_dict("records")]


def varies(frame: pd.DataFrame, column: str) -> bool:
    """Whether the rows differ in `column`."""
    return len(frame.drop_duplicates(column)) > 1


def _read_config(folder: Path) -> dict[str, Any]:
    """The configuration as {"bits": 8, "optim.lr": 0.1}; empty where it cannot be read."""
    try:
        return dict(_flat(yaml.safe_load((folder / "config.yaml").read_text())))
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items() if isinstance(node, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}".removeprefix("algo."), value


def _differing(configs: list[dict[str, Any]]) -> set[str]:
    keys = {key for config in configs for key in config} - {"seed"}
    return {key for key in keys if len({repr(config.get(key)) for config in configs}) > 1}


def _outcome(group: pd.DataFrame) -> Row:
    """What came of the runs of one setting."""
    times = group.time_to_accuracy_s.fillna(math.inf).to_numpy()
    low, high = bootstrap_interval(times) if len(group) >= 3 else (math.nan, math.nan)
    return {
        "runs": len(group),
        "missed": int(np.isinf(times).sum()),
        "time_to_accuracy_s": float(np.median(times)),
        "low": low,
        "high": high,
        "mb_sent_per_worker": group.bytes_sent_per_worker.median() / 1e6,
        **{column: group[column].median() for column in _MEDIANS},
        "evaluated_model": ", ".join(sorted(set(group.evaluated_model.dropna()))),
        "status": _status(list(group.status)),
    }


def _status(statuses: list[str]) -> str:
    """Such as "completed", "failed" (of one run) or "1 of 3 diverged"."""
    broken = Counter(sorted(status for status in statuses if status != "completed"))
    if len(statuses) == 1 or not broken:
        return statuses[0]
    return ", ".join(f"{n} of {len(statuses)} {status}" for status, n in broken.items())


def _columns(table: pd.DataFrame) -> dict[str, list[str]]:
    """The cells of the printed table; a column that says nothing is left out."""
    rows = table.to_dict("records")
    leading = [column for column in SITUATION | DETAIL if varies(table, column)]
    columns = {_HEADERS.get(c, c): [shown(c, row[c]) for row in rows] for c in leading}
    if "asked_rate_mbit" in leading:
        columns["Mbit/s measured"] = _numbers(rows, "achieved_rate_mbit", ".4g")
    columns["algorithm"] = [row["name"] for row in rows]
    if len({row["evaluated_model"] for row in rows} - {""}) > 1:
        columns["evaluated"] = [row["evaluated_model"] or "-" for row in rows]
    if any(row["runs"] > 1 for row in rows):
        columns["runs"] = [str(row["runs"]) for row in rows]
    columns |= {
        "time to accuracy (s)": [_time_cell(row) for row in rows],
        "final accuracy (test)": _numbers(rows, "final_accuracy", ".4f"),
        "steps/s": _numbers(rows, "steps_per_s", ".4g"),
        "MB sent per worker": _numbers(rows, "mb_sent_per_worker", ",.1f"),
        "exposed communication (s)": _numbers(rows, "exposed_communication_s", ",.1f"),
    }
    if any(row["status"] != "completed" for row in rows):
        columns["status"] = [row["status"].replace("completed", "") for row in rows]
    return columns


def shown(column: str, value: Any) -> str:
    """A value of a column of `SITUATION` or `DETAIL`, as a person reads it."""
    if pd.isna(value):
        return "-"
    if column == "backend" and value == "sim":
        return "simulated"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(rows: list[Row], name: str, form: str) -> list[str]:
    return ["-" if pd.isna(row[name]) else format(row[name], form) for row in rows]


def _time_cell(row: Row) -> str:
    """Such as "41.2", "41.2 (38.0 to 45.1)", "41.2 (38.0 to missed), missed (1/3)" or "missed"."""
    if pd.isna(row["target_accuracy"]):
        return "no target"
    missed = f"missed ({row['missed']}/{row['runs']})" if row["runs"] > 1 else "missed"
    if math.isinf(row["time_to_accuracy_s"]):
        return missed
    low, high = ("missed" if math.isinf(t) else f"{t:,.1f}" for t in (row["low"], row["high"]))
    interval = f" ({low} to {high})" if row["runs"] >= 3 else ""
    return f"{row['time_to_accuracy_s']:,.1f}{interval}" + (f", {missed}" if row["missed"] else "")


def _found(runs: pd.DataFrame) -> list[str]:
    """What the runs found out themselves, where one phrase can say it of all."""
    rates, evaluated = runs.achieved_rate_mbit.dropna(), set(runs.evaluated_model.dropna())
    phrases = []
    if len(rates) and not varies(runs, "asked_rate_mbit"):
        bounds = dict.fromkeys(f"{rate:.4g}" for rate in (rates.min(), rates.max()))
        phrases.append(f"{' to '.join(bounds)} Mbit/s measured")
    if len(evaluated) == 1:
        phrases.append(f"evaluated: {evaluated.pop()}")
    return phrases
