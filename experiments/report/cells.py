"""What people read of `results_table`: the cells of tables, and what all runs share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from experiments.report.results_table import (
    AT_WORK,
    COMPARABLE,
    DETAIL,
    KEYS,
    OF_A_STEP,
    SITUATION,
    shown,
    varies,
)
from experiments.report.statistics import MIN_SEEDS
from experiments.runs.load import find_twins
from experiments.runs.summary import NOT_ENDED
from experiments.tasks.target import ACCURACY
from host.words import counted, listed, significant

TITLE_COLUMNS = (
    *("task", "data", "model", "model_options", "partition", "net", "net_options", "tcp_options"),
    *("workers", "backend"),
)
WORDS = {
    *("task", "data", "model", "model's", "partition", "network", "network's", "TCP", "gpu"),
    *("backend", "optim"),
    *("algorithm", "evaluated", "status", "reason", "search", "objective", "objectives", "field"),
    "command",
}
"""The headers of columns that hold words, not numbers."""

_HEADERS = {
    "model_options": "model's",
    "net": "network",
    "net_options": "network's",
    "tcp_options": "TCP",
    "asked_rate_mbit": "Mbit/s asked",
}

_TIME = "time_to_accuracy_s"
_SELDOM = "those that are evaluated less often seem to reach their target later"
_SHORT = "some missed their target in fewer steps than others had"

Columns = dict[str, list[str]]
Say = Callable[[float], str]
"""How a number is printed."""


def render(table: pd.DataFrame, runs: pd.DataFrame) -> Table:
    """The rows of `results_table(runs)`, to be printed; above and below, what all runs share, which
    are `named`.
    """
    caption = [describe(runs, ["target", "optim", "asked_rate_mbit"]), *_found(runs)]
    rendered = Table(
        title=Text(describe(runs, TITLE_COLUMNS), style="bold"),
        caption=Text(", ".join(phrase for phrase in caption if phrase)),
    )
    columns = leading(table) | outcomes(table, SUMMARY_HEADERS)
    for header in columns:
        rendered.add_column(header, justify="left" if header in WORDS else "right")
    groups = table.groupby(list(COMPARABLE), dropna=False).ngroup().tolist()
    for i, cells in enumerate(zip(*columns.values(), strict=True)):
        is_last = groups[i : i + 1] != groups[i + 1 : i + 2]
        rendered.add_row(*map(Text, cells), end_section=is_last)
    return rendered


def describe(runs: pd.DataFrame, columns: Iterable[str]) -> str:
    """Says the values of those columns of SITUATION and DETAIL that have one value in all runs."""
    phrases, first = SITUATION | DETAIL, runs.iloc[0].to_dict()
    same = [c for c in columns if not varies(runs, c) and pd.notna(first[c])]
    return ", ".join(phrases[c](shown(c, first[c])) for c in same)


def remarks(runs: pd.DataFrame) -> list[str]:
    """A line for each run, of those that are `named`, that did not complete: its folder, its status
    and the reason.
    """
    others = runs.query("status != 'completed'").fillna({"reason": "no reason was recorded"})
    return [
        f"{folder}{_came_to(status, reason)}"
        for folder, status, reason in zip(others.folder, others.status, others.reason, strict=True)
    ]


def _came_to(status: str, reason: str) -> str:
    """Such as " failed: worker 2 died", or " not ended (stopped by SIGTERM)"."""
    if reason == NOT_ENDED:
        return f": {reason}"
    return f" {status} ({reason})" if status == AT_WORK else f" {status}: {reason}"


def repeated(runs: pd.DataFrame) -> list[str]:
    """A sentence where two of the runs that have ended, which are `named`, are of one setting and
    one seed.
    """
    keys = [*KEYS, "seed"]
    runs = runs.loc[runs.seed.notna() & (runs.status != AT_WORK)]
    if (twins := find_twins(runs, keys)) is None:
        return []
    num = int(runs.duplicated(keys).sum())
    return [
        f"{counted(num, 'run')} of a setting and a seed that another run has, such as "
        f"{twins[0].folder} and {twins[1].folder}: each counts as one more seed, which makes "
        "intervals too narrow and ties too few. Leave one of each two out."
    ]


def unlike(runs: pd.DataFrame) -> list[str]:
    """A sentence for each option of `OF_A_STEP` and `OF_A_RUN` in which runs differ that are
    compared, and `named` without it: those of a situation, or, of a step's options, those of an
    algorithm with several numbers of workers.
    """
    situations = [own for _, own in runs.groupby([*COMPARABLE], dropna=False)]
    over_workers = ["label", *(column for column in COMPARABLE if column != "workers")]
    compared = {
        "Runs of one situation": situations,
        "Runs of one algorithm with several numbers of workers": [
            own for _, own in runs.groupby(over_workers, dropna=False)
        ],
    }
    told = [
        _untold(option, who, groups, "a worker's step is not the same work in all")
        for option, (who, groups) in product(OF_A_STEP, compared.items())
    ]
    cut = [own for own in situations if _has_short_miss(own)]
    told += [
        _untold("eval_every", "Runs of one situation", situations, _SELDOM),
        _untold("max_steps", "Runs of one situation", cut, _SHORT),
    ]
    return [*filter(None, told)]


def _untold(option: str, who: str, groups: Iterable[pd.DataFrame], so: str) -> str:
    """A sentence on the first group that differs in an option that some name does not tell."""
    hidden = next((own[option] for own in groups if _is_hidden(own, option)), None)
    if hidden is None:
        return ""
    values = sorted(set(hidden.dropna()), key=lambda text: (len(text), text))
    return f"{who} differ in {option}, such as {listed(values)}, which not every name tells: {so}."


def _has_short_miss(runs: pd.DataFrame) -> bool:
    """Whether one that completed has missed its target, and was to have fewer steps than others."""
    steps = pd.Series(pd.to_numeric(runs.max_steps, errors="coerce"))
    has_missed = (runs.status == "completed") & runs.target.notna() & runs[_TIME].isna()
    return bool((has_missed & (steps < steps.max())).any())


def _is_hidden(runs: pd.DataFrame, option: str) -> bool:
    """Whether they differ in it, and some name does not tell it."""
    is_told = runs["name"].str.contains(f" {option}=", regex=False)
    num_values = len(set(runs[option].dropna()))
    return num_values > 1 and not all(is_told)


def leading(table: pd.DataFrame) -> Columns:
    """The columns that tell one row of `results_table` from another; what all share is left out."""
    rows = table.to_dict("records")
    telling = [column for column in SITUATION | DETAIL if varies(table, column)]
    columns = {_HEADERS.get(c, c): [shown(c, row[c]) for row in rows] for c in telling}
    if "target" in columns and set(table["metric"]) == {ACCURACY}:
        columns["target"] = [cell.removeprefix(f"{ACCURACY} ") for cell in columns["target"]]
    if "asked_rate_mbit" in telling:
        columns["Mbit/s measured"] = [
            _number(row["achieved_rate_mbit"], "{:.4g}".format) for row in rows
        ]
    columns["algorithm"] = [row["name"] for row in rows]
    if len({row["evaluated_model"] for row in rows} - {""}) > 1:
        columns["evaluated"] = [row["evaluated_model"] or "-" for row in rows]
    if any(row["runs"] > 1 for row in rows):
        columns["runs"] = [str(row["runs"]) for row in rows]
    return columns


def outcomes(table: pd.DataFrame, headers: Sequence[str]) -> Columns:
    """Those columns of what came of the runs; one that would say nothing is left out."""
    rows = table.to_dict("records")
    columns = {header: [CELLS[header](row) for row in rows] for header in headers}
    silent = {header for header in _OPTIONAL if not set(columns.get(header, [])) - {"", "-"}}
    if len(table) == 1 or not (table.runs >= MIN_SEEDS).any():
        silent.add("place")
    kept = {header: cells for header, cells in columns.items() if header not in silent}
    return {said_of(table, header): cells for header, cells in kept.items()}


def said_of(table: pd.DataFrame, text: str) -> str:
    """`text`, which speaks of accuracy, for rows of the metrics of `table`: "time to target", and
    "final loss" or, where metrics differ, "final score".
    """
    metrics = set(table["metric"])
    if metrics <= {ACCURACY}:
        return text
    name = metrics.pop() if len(metrics) == 1 else "score"
    for word in ("to accuracy", "to the accuracy"):
        text = text.replace(word, word.replace("accuracy", "target"))
    return text.replace("target accuracy", "target").replace("accuracy", name)


def _time_cell(row: Mapping[Any, Any]) -> str:
    """Such as "41.2", "41.2 (38.0 to 45.1)", "41.2 (38.0 to missed), missed (1/6)" or "missed"."""
    if pd.isna(row["target"]):
        return "no target"
    if row["shared_gpu"]:
        return "shared GPU"
    if math.isnan(row["time_to_accuracy_s"]):
        return AT_WORK
    missed = f"missed ({row['missed']}/{row['runs']})" if row["runs"] > 1 else "missed"
    if math.isinf(row["time_to_accuracy_s"]):
        return missed
    low, high = ("missed" if math.isinf(t) else significant(t) for t in (row["low"], row["high"]))
    interval = "" if math.isnan(row["low"]) else f" ({low} to {high})"
    return f"{significant(row['time_to_accuracy_s'])}{interval}" + (
        f", {missed}" if row["missed"] else ""
    )


def _speedup_cell(row: Mapping[Any, Any]) -> str:
    """Such as "2.16", "2.16 (1.90 to 2.40)", "2.16 (1.90 or more)", "0.89 (missed to 1.04)" or
    "1 (the baseline)".
    """
    if row["is_best_baseline"]:
        return "1 (the baseline)"
    if math.isnan(row["speedup"]):
        return "-"
    if math.isinf(row["speedup"]):
        return "the baseline missed"
    if row["speedup"] == 0:
        return "missed"
    low, high = row["speedup_low"], row["speedup_high"]
    if math.isnan(low):
        return f"{row['speedup']:.2f}"
    lower = f"{low:.2f}" if low else "missed"
    upper = "or more" if math.isinf(high) else f"to {high:.2f}"
    return f"{row['speedup']:.2f} ({lower} {upper})"


def _place_cell(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["place"]):
        return "-"
    return f"{row['place']:g}" + (", ties with 1" if row["ties_with_first"] else "")


def _reached_cell(row: Mapping[Any, Any]) -> str:
    """Such as "2/3 (21 to 94 %)"."""
    if pd.isna(row["target"]):
        return "no target"
    if math.isnan(row["reached"]):
        return AT_WORK
    share = f"{row['runs'] - row['missed']}/{row['runs']}"
    if row["runs"] < MIN_SEEDS:
        return share
    return f"{share} ({100 * row['reached_low']:.0f} to {100 * row['reached_high']:.0f} %)"


def _accuracy_cell(row: Mapping[Any, Any]) -> str:
    """Such as "0.9512" or "0.9512 (0.9480 to 0.9533)"."""
    text = _number(row["final_score"], "{:.4f}".format)
    if math.isnan(row["final_low"]):
        return text
    return f"{text} ({row['final_low']:.4f} to {row['final_high']:.4f})"


def _exposed_cell(row: Mapping[Any, Any]) -> str:
    return "-" if pd.isna(row["exposed_share"]) else f"{100 * row['exposed_share']:.1f} %"


def _way_cell(row: Mapping[Any, Any], column: str, say: Say) -> str:
    return "missed" if row[column] == math.inf else _number(row[column], say)


def _status_cell(row: Mapping[Any, Any]) -> str:
    return row["status"].replace("completed", "")


def _number(value: float, say: Say) -> str:
    return "-" if pd.isna(value) else say(value)


def _of(column: str, say: Say) -> Callable[[Mapping[Any, Any]], str]:
    return lambda row: _number(row[column], say)


CELLS: dict[str, Callable[[Mapping[Any, Any]], str]] = {
    "time to accuracy (s)": _time_cell,
    "reached the target": _reached_cell,
    "speed-up over the best baseline": _speedup_cell,
    "place": _place_cell,
    "final accuracy (test)": _of("final_score", "{:.4f}".format),
    "final accuracy (test), interval": _accuracy_cell,
    "workers' own models (test)": _of("final_own_score", "{:.4f}".format),
    "workers' own models then": _of("own_score_at_target", "{:.4f}".format),
    "loss (test, nats)": _of("final_loss", "{:.4f}".format),
    "bits a character or byte (test)": _of("final_bits_per_character", "{:.3f}".format),
    "validation accuracy": _of("validation_score", "{:.4f}".format),
    "spread of weights": _of("spread", "{:.1e}".format),
    "steps": _of("steps", "{:,.0f}".format),
    "steps to accuracy": lambda row: _way_cell(row, "steps_to_accuracy", "{:,.0f}".format),
    "MB to accuracy": lambda row: _way_cell(row, "mb_to_accuracy", significant),
    "steps/s": _of("steps_per_s", "{:.4g}".format),
    "MB sent per worker": _of("mb_sent_per_worker", significant),
    "MB a step": _of("mb_a_step", "{:.4g}".format),
    "of the baseline's": _of("bytes_ratio", "{:.3f}".format),
    "exposed communication (s)": _of("exposed_communication_s", significant),
    "of the training time": _exposed_cell,
    "status": _status_cell,
}
"""Every column of outcomes, by its header: what a row of `results_table` says there."""

SUMMARY_HEADERS = (
    *("time to accuracy (s)", "speed-up over the best baseline", "place"),
    *("final accuracy (test)", "bits a character or byte (test)", "steps/s", "MB sent per worker"),
    *("exposed communication (s)", "status"),
)
"""What `render` prints."""

_OPTIONAL = (
    *("speed-up over the best baseline", "place", "of the baseline's"),
    *("loss (test, nats)", "bits a character or byte (test)", "status"),
    *("workers' own models (test)", "workers' own models then"),
)


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
