"""The rows of every table of runs: one for the runs that differ in nothing but their seed.

A run that missed the target counts as one that takes for ever; it is never dropped. Times are
compared within a situation and a backend only, so simulated ones never with measured ones, and
those of workers that shared a GPU not at all.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.plan.identity import ADDED
from experiments.report.configurations import CONFIGURATION, differing, read_config, unusual
from experiments.report.places import compared_on_page
from experiments.report.scores import signs, with_scores
from experiments.report.statistics import Array, median_interval, proportion_interval
from experiments.runs.load import unended
from experiments.runs.summary import ENDED_EARLY
from host.words import counted

# What two runs must share for their times to be comparable, and how to say a value as `shown`.
SITUATION: dict[str, Callable[[str], str]] = {
    "task": str,
    "data": "data {}".format,
    "model": str,
    "model_options": str,
    "partition": "partition {}".format,
    "net": "network {}".format,
    "net_options": str,
    "tcp_options": str,
    "asked_rate_mbit": "{} Mbit/s asked".format,
    "workers": lambda number: counted(int(number), "worker"),
    "cluster": str,
    "gpu": str,
    "target": "target {}".format,
}
# What else tells runs apart, beside the algorithm and the seed.
DETAIL: dict[str, Callable[[str], str]] = {"backend": str, "optim": "optimizer {}".format}
COMPARABLE = (*SITUATION, "backend")
OF_A_STEP = ("batch_size", "precision", "accumulate")
"""Options that make one step another piece of work."""
SHARED = ("task.", "data.", "model.", *OF_A_STEP)
"""Options and groups of them that algorithms have alike where they are compared."""
OF_A_RUN = ("eval_every", "max_steps")
"""Options that say how often, and for how long, a run looks for its target."""
_BASELINE = "TorchDDP"
_CLUSTER = "cluster."
_TCP = ("net.tcp_", "net.mtu")
_TOLD_ELSEWHERE = (*_TCP, "net.rate_mbit", "net.backend", "task.target_accuracy")
"""Options that have a column of their own, or that change how a link is shaped, not what it is."""
_PARTITION = ("data.partition", "data.alpha", "data.sizes")
_FOR_TUNING = "data.for_tuning"
_OF_SITUATION = (*_TCP, *_PARTITION, _FOR_TUNING)
"""Unusual options that the situation tells, not the name."""
HELD_OUT = "held out of the training set"
"""The data of validation and test where a run was to tune."""
KEYS = (*SITUATION, *DETAIL, "metric", "shared_gpu", "name", "label", "algo", "is_baseline")
"""What the runs of a setting share."""
_TIMES = ("steps_per_s", "exposed_communication_s", "exposed_share")
_MEDIANS = (
    *("final_score", "final_loss", "final_bits_per_character"),
    *("final_own_score", "own_score_at_target"),
    *("validation_score", "spread", "steps", "achieved_rate_mbit"),
    *("mb_sent_per_worker", "mb_a_step", *_TIMES),
)
AT_WORK = "not ended"
"""The status of a run that is at work, that was stopped from outside (Ctrl-C, a signal, a full
disk), or that a search ended before its target.
"""


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` (of `load_runs`) with what their configurations tell.

    Adds "name": the algorithm, with the options that vary among such runs, so that runs of one
    algorithm with `bits` of 4 and of 8 are two algorithms, not two seeds of one. "label": the name
    with what else of DETAIL tells it from others. "cluster": the options of `cluster` that vary,
    such as "straggler=0.5". "tcp_options": those of the network that are not Linux's own, such as
    "mtu=9000, wmem_max_kb=64". "data", "model_options" and "net_options": what else varies among
    runs of one task, model or network, such as "root=a", "hidden=64" or "delay_ms=5"; "data" also
    has `HELD_OUT` where examples of the training set judge (`data.for_tuning`).
    "partition": which examples workers have for themselves, such as "dirichlet, alpha=0.1"; None
    where all share all. "is_baseline": it is PyTorch's own. "learning_rate": the
    optimizer's, scaled; NaN where that is not recorded. "shared_gpu": its workers shared a GPU;
    false where that is not recorded. "metric": of the target; "target": with its value, such as
    "accuracy 0.9", None where there is none. "target_score", "final_score" and "validation_score":
    values of that metric. "stops_at_target": it was to end there. Those of `OF_A_STEP` and
    `OF_A_RUN`, as texts.
    "status" is `AT_WORK` for a run that has not ended, of which nobody knows what it will reach.
    """
    if "label" in runs:
        return runs
    is_cut = (runs.status == ENDED_EARLY) & runs.time_to_accuracy_s.isna()
    runs = runs.assign(status=runs.status.mask(unended(runs) | is_cut, AT_WORK))
    configs = [read_config(Path(folder)) for folder in runs.folder]
    shared = runs["shared_gpu"] if "shared_gpu" in runs else [None] * len(runs)
    texts = {
        "cluster": _clusters(configs),
        "tcp_options": map(_tcp_options, configs),
        "data": _data(runs.task, configs),
        "model_options": _varying(runs.model, "model.", configs),
        "net_options": _varying(runs.net, "net.", configs),
        "partition": map(_partition, configs),
        **{name: [config.get(name) for config in configs] for name in (*OF_A_STEP, *OF_A_RUN)},
    }
    own = {name: pd.Series(values, runs.index, dtype="str") for name, values in texts.items()}
    runs = with_scores(runs.assign(**own))
    runs = runs.assign(
        name=_names(runs, configs),
        is_baseline=[_is_baseline(config) for config in configs],
        learning_rate=[_learning_rate(config) for config in configs],
        stops_at_target=[config.get("stop_at_target") is True for config in configs],
        shared_gpu=[bool(pd.notna(value) and value) for value in shared],
    )
    return runs.assign(label=_labels(runs))


def results_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a setting: the runs (of `load_runs`) that differ in nothing but their seed.

    Columns: those of SITUATION and DETAIL, and of `named`; "runs" and, of these, "missed"; the
    share that "reached" the target and its interval `reached_low`, `reached_high`; "times_s" of all
    runs and their "seeds"; medians, of which `time_to_accuracy_s` is inf where the median run
    missed, and `low` and `high`, its interval, are NaN for fewer than three runs, as `final_low`
    and `final_high`, that of the score; "learning_rate"; "evaluated_model"; "status";
    and those of `compared`. What takes time is NaN for workers that shared a GPU.

    Rows are sorted by situation and backend, then by time to accuracy, misses last.
    """
    runs = _with_ratios(named(runs))
    setting = runs.groupby(list(KEYS), dropna=False).ngroup()
    groups = runs.groupby(setting)
    told = _told(runs, setting).groupby(setting)
    table = groups[list(KEYS)].first().join(told[list(_MEDIANS)].median().astype(float))
    samples = zip(told.time_to_accuracy_s, told.final_score, told.seed, strict=True)
    outcomes = [_outcome(*(values.to_numpy() for _, values in sample)) for sample in samples]
    table = table.join(pd.DataFrame(outcomes, index=table.index))
    table["is_overcounted"] = groups.is_overcounted.any()
    table["learning_rate"] = groups.learning_rate.first()
    table["evaluated_model"] = groups.evaluated_model.agg(_all_of)
    table["stops_at_target"] = groups.stops_at_target.any()
    table["status"] = groups.status.agg(_status)
    table.loc[table.shared_gpu, ["time_to_accuracy_s", "low", "high", *_TIMES]] = math.nan
    best_first = (signs(table) * table.final_score).sort_values(ascending=False)
    table = table.loc[best_first.index]
    order = [*SITUATION, "backend", "time_to_accuracy_s"]
    table = table.sort_values(order, kind="stable", ignore_index=True)
    return table.join(pd.DataFrame(_comparisons(table), index=table.index))


def comparable(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of `results_table`, or runs, in the groups within which times are compared."""
    yield from (group for _, group in table.groupby(list(COMPARABLE), dropna=False))


def varies(frame: pd.DataFrame, column: str) -> bool:
    """Whether the rows differ in `column`."""
    return int((~frame[column].duplicated()).sum()) > 1


def shown(column: str, value: Any) -> str:
    """A value of a column of `SITUATION` or `DETAIL`, as a person reads it."""
    if pd.isna(value):
        return "-"
    if column == "backend" and value == "sim":
        return "simulated"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_baseline(config: dict[str, Any]) -> bool:
    """By the class alone: records keep the module in which it was when they were made."""
    return str(config.get("_target_")).rpartition(".")[2] == _BASELINE


def _clusters(configs: Sequence[dict[str, Any]]) -> list[str | None]:
    """What their workers are like, where they are not alike in all: None where they are."""
    varying = sorted(differing(configs, _CLUSTER))
    names = {key: key.removeprefix(_CLUSTER).removesuffix("._target_") for key in varying}
    return [
        ", ".join(f"{names[key]}={_word(config[key])}" for key in varying if key in config) or None
        for config in configs
    ]


def _tcp_options(config: Mapping[str, Any]) -> str | None:
    keys = (key for key in sorted(unusual(config)) if key.startswith(_TCP))
    names = {key: key.removeprefix("net.").removeprefix("tcp_") for key in keys}
    return ", ".join(f"{name}={config[key]}" for key, name in names.items()) or None


def _varying(
    names: Iterable[str], group: str, configs: Sequence[dict[str, Any]]
) -> list[str | None]:
    """What a run has in another way than others of the same name, of the options of a `group`: None
    where all are alike. A task over a user's own files has one name for all of them, as a network
    with another delay has.
    """
    names = list(names)
    of_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, config in zip(names, configs, strict=True):
        of_name[name].append(config)
    varying = {
        name: sorted(key for key in differing(own, group) if not key.startswith(_TOLD_ELSEWHERE))
        for name, own in of_name.items()
    }
    return [
        ", ".join(f"{k.removeprefix(group)}={_word(config.get(k))}" for k in varying[name]) or None
        for name, config in zip(names, configs, strict=True)
    ]


def _data(tasks: Iterable[str], configs: Sequence[dict[str, Any]]) -> list[str | None]:
    told = zip(_varying(tasks, "task.", configs), configs, strict=True)
    pairs = [(own, HELD_OUT if _FOR_TUNING in unusual(config) else None) for own, config in told]
    return [", ".join(filter(None, pair)) or None for pair in pairs]


def _partition(config: Mapping[str, Any]) -> str | None:
    kind, alpha, sizes = (config.get(key, ADDED[key]) for key in _PARTITION)
    if kind == ADDED["data.partition"]:
        return None
    given = "" if alpha is None else f", alpha={alpha}"
    return f"{kind}{given}" + ("" if sizes == ADDED["data.sizes"] else f", {sizes} sizes")


def _names(runs: pd.DataFrame, configs: Sequence[dict[str, Any]]) -> list[str]:
    alike = runs.groupby([*SITUATION, *DETAIL, "algo"], dropna=False).ngroup()
    groups = defaultdict(list)
    for group, algo, config in zip(alike, runs.algo, configs, strict=True):
        groups[group, algo].append(config)
    varying: dict[str, set[str]] = defaultdict(set)
    for (_, algo), group in groups.items():
        varying[algo] |= differing(group)
    common = _common(configs) if len(set(runs.algo)) > 1 else set[str]()
    told = [
        varying[algo] | _named(config) - common
        for algo, config in zip(runs.algo, configs, strict=True)
    ]
    return [
        " ".join([algo, *(f"{key}={_word(config.get(key))}" for key in sorted(keys))])
        for algo, config, keys in zip(runs.algo, configs, told, strict=True)
    ]


def _word(value: Any) -> str:
    """As one would give it to the app, which takes None for a text."""
    return "null" if value is None else str(value)


def _common(configs: Sequence[Mapping[str, Any]]) -> set[str]:
    """The unusual options that all runs have alike, which tell no two algorithms apart."""
    found = [{(key, repr(config.get(key))) for key in unusual(config)} for config in configs]
    return {key for key, _ in set.intersection(*found)}


def _named(config: Mapping[str, Any]) -> set[str]:
    """What is named even where no two runs of an algorithm differ in it: other algorithms do."""
    keys = {key for key in unusual(config) if not key.startswith(_OF_SITUATION)}
    return keys | (config.keys() & {CONFIGURATION})


def _learning_rate(config: dict[str, Any]) -> float:
    """The optimizer's, times `lr_scale`, to 12 digits, so that 0.1 by 3 is 0.3; NaN where the
    configuration does not say.
    """
    rate, scale = config.get("optim.lr"), config.get("lr_scale", 1.0)
    if isinstance(rate, int | float) and isinstance(scale, int | float):
        return float(f"{rate * scale:.12g}")
    return math.nan


def _labels(runs: pd.DataFrame) -> list[str]:
    """Simulated is never unlabelled beside measured."""
    everywhere = {"backend"} if varies(runs, "backend") else set()
    telling = {
        name: [c for c in DETAIL if c in everywhere or varies(group, c)]
        for name, group in runs.groupby("name")
    }
    return [
        ", ".join([row["name"], *(shown(c, row[c]) for c in telling[row["name"]])])
        for row in runs.loc[:, ["name", *DETAIL]].to_dict("records")
    ]


def _with_ratios(runs: pd.DataFrame) -> pd.DataFrame:
    """With inf for a missed time, and what is a ratio of two fields of a run.

    Older records of real workers count what evaluations sent as exposed communication, though the
    clock stood still: where that is more than all of the time, no share is given.
    """
    share = runs.exposed_communication_s * runs.steps_per_s / runs.steps.astype(float)
    mb_sent_per_worker = runs.bytes_sent_per_worker / 1e6
    return runs.assign(
        time_to_accuracy_s=runs.time_to_accuracy_s.where(
            runs.time_to_accuracy_s.notna() | (runs.status == AT_WORK), math.inf
        ),
        mb_sent_per_worker=mb_sent_per_worker,
        mb_a_step=mb_sent_per_worker / runs.steps.astype(float),
        exposed_share=share.where(share <= 1),
        is_overcounted=share > 1,
    )


def _told(runs: pd.DataFrame, setting: pd.Series) -> pd.DataFrame:
    """Of each setting the runs that have ended, where there is one."""
    has_ended = runs.time_to_accuracy_s.notna()
    return runs.loc[has_ended | ~has_ended.groupby(setting).transform("any")]


def _outcome(times_s: Array, scores: Array, seeds: Array) -> dict[str, Any]:
    """What came of the runs of one setting: all have ended, or none."""
    has_ended = not np.isnan(times_s).any()
    num_missed = int(np.isinf(times_s).sum())
    num_reached = len(times_s) - num_missed
    final_low, final_high = median_interval(scores[~np.isnan(scores)])
    low = high = reached = reached_low = reached_high = math.nan
    if has_ended:
        low, high = median_interval(times_s)
        reached = num_reached / len(times_s)
        reached_low, reached_high = proportion_interval(num_reached, len(times_s))
    return {
        "runs": len(times_s),
        "missed": num_missed,
        "reached": reached,
        "reached_low": reached_low,
        "reached_high": reached_high,
        "times_s": tuple(times_s),
        "seeds": tuple(seeds),
        "time_to_accuracy_s": float(np.median(times_s)),
        "low": low,
        "high": high,
        "final_low": final_low,
        "final_high": final_high,
    }


def _comparisons(table: pd.DataFrame) -> list[dict[str, Any]]:
    """In the order of `table`."""
    rows = {}
    groups = list(comparable(table))
    found = compared_on_page([group.to_dict("records") for group in groups])
    for group, of_group in zip(groups, found, strict=True):
        rows |= zip(group.index, of_group, strict=True)
    return [rows[index] for index in table.index]


def _all_of(values: pd.Series) -> str:
    return ", ".join(sorted(set(values.dropna())))


def _status(values: pd.Series) -> str:
    """Such as "completed", "failed" (of one run) or "1 of 3 diverged"."""
    statuses = list(values)
    broken = Counter(sorted(status for status in statuses if status != "completed"))
    if len(statuses) == 1 or not broken:
        return statuses[0]
    return ", ".join(f"{n} of {len(statuses)} {status}" for status, n in broken.items())
