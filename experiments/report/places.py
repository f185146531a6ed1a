"""What settings whose times may be compared are to one another: places, ties, speed-ups."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.report.statistics import MIN_SEEDS, UNKNOWN, is_tie, ratio_interval

STAND_IN = "allreduce"
"""The baseline where PyTorch's own were not run: they cannot be simulated."""

_Times = tuple[float, ...]


def compared(rows: Sequence[Mapping[Any, Any]]) -> Iterator[dict[str, Any]]:
    """What rows whose times may be compared are to one another.

    "place" counts from 1 and is NaN for a miss; "ties_with_first" is by `is_tie`; "baseline" is the
    label of the fastest baseline, `speedup` how many times faster the row is, with its interval
    from `speedup_low` to `speedup_high`; `bytes_ratio` is what it sends a step over what
    "bytes_baseline" sends, the one that sends most.
    """
    finite = [row for row in rows if row["time_to_accuracy_s"] < math.inf]
    first = min(finite, key=lambda row: row["time_to_accuracy_s"], default=None)
    baselines = _baselines(rows)
    baseline = min(baselines, key=lambda row: row["time_to_accuracy_s"], default=None)
    largest = max(baselines, key=lambda row: row["mb_a_step"], default=None)
    for row in rows:
        time_s = row["time_to_accuracy_s"]
        is_placed = time_s < math.inf
        earlier = sum(other["time_to_accuracy_s"] < time_s for other in finite)
        sent = math.nan if largest is None else largest["mb_a_step"]
        yield {
            "place": 1 + earlier if is_placed else math.nan,
            "ties_with_first": is_placed and row is not first and _ties(row, first),
            "baseline": None if baseline is None else baseline["label"],
            "is_best_baseline": row is baseline,
            "bytes_baseline": None if largest is None else largest["label"],
            "bytes_ratio": _ratio(row["mb_a_step"], sent),
            **_speedup(row, baseline),
        }


def _baselines(rows: Sequence[Mapping[Any, Any]]) -> list[Mapping[Any, Any]]:
    rows = [row for row in rows if not row["shared_gpu"]]
    baselines = [row for row in rows if row["is_baseline"]]
    return baselines or [row for row in rows if row["algo"] == STAND_IN]


def _speedup(row: Mapping[Any, Any], baseline: Mapping[Any, Any] | None) -> dict[str, Any]:
    ratio, interval = math.nan, UNKNOWN
    if baseline is not None and not row["shared_gpu"]:
        ratio = _ratio(baseline["time_to_accuracy_s"], row["time_to_accuracy_s"])
        if row is not baseline and not math.isnan(ratio) and _have_intervals(row, baseline):
            times, others, paired = _paired(baseline, row)
            interval = ratio_interval(times, others, paired=paired)
    return {"speedup": ratio, "speedup_low": interval[0], "speedup_high": interval[1]}


def _ratio(value: float, other: float) -> float:
    """NaN for two misses, and where `other` is 0."""
    return value / other if other else math.nan


def _ties(row: Mapping[Any, Any], first: Mapping[Any, Any] | None) -> bool:
    if first is None:
        return False
    times, others, paired = _paired(row, first)
    return is_tie(times, others, paired=paired, model_error=0.0)


def _paired(row: Mapping[Any, Any], other: Mapping[Any, Any]) -> tuple[_Times, _Times, bool]:
    """The times of both, seed by seed; where seeds differ or come twice, of all, not paired."""
    seeds = row["seeds"]
    if len(set(seeds)) < len(seeds) or sorted(seeds) != sorted(other["seeds"]):
        return row["times_s"], other["times_s"], False
    of_other = dict(zip(other["seeds"], other["times_s"], strict=True))
    return row["times_s"], tuple(of_other[seed] for seed in seeds), True


def _have_intervals(*rows: Mapping[Any, Any]) -> bool:
    return all(row["runs"] >= MIN_SEEDS for row in rows)
