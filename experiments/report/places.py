"""What settings whose times may be compared are to one another: places, ties, speed-ups."""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pandas as pd

from experiments.report.statistics import (
    MIN_SEEDS,
    UNKNOWN,
    holm,
    is_tie,
    p_values,
    ratio,
    ratio_interval,
)

STAND_IN = "allreduce"
"""The baseline where PyTorch's own were not run: they cannot be simulated."""

_Times = tuple[float, ...]


_Rows = Sequence[Mapping[Any, Any]]


def compared(rows: _Rows) -> Iterator[dict[str, Any]]:
    """What rows whose times may be compared are to one another, as on a page of their own."""
    yield from compared_on_page([rows])[0]


def compared_on_page(situations: Sequence[_Rows]) -> list[list[dict[str, Any]]]:
    """What the rows of each situation are to one another, on a page of all these situations.

    "place" counts from 1 and is NaN for a miss; "ties_with_first": by `is_tie`, or because `holm`
    does not tell the two apart, of all pairs of rows with a known time to a target that stand in
    one situation of the page (any of them could have been the first); "baseline" is the label of
    the fastest baseline, `speedup` how many times faster the row is (`ratio`; without an interval
    that of the medians), with its interval from `speedup_low` to `speedup_high`; `bytes_ratio` is
    what it sends a step over what "bytes_baseline" sends, the one that sends most.
    """
    num_pairs = sum(math.comb(len(_with_intervals(rows)), 2) for rows in situations)
    chances = [_chances(rows) for rows in situations]
    told = iter(holm([chance for own in chances for chance in own.values()], num_pairs))
    apart = [{k for k in own if next(told)} for own in chances]
    return [
        list(_compared(rows, own.keys() - those))
        for rows, own, those in zip(situations, chances, apart, strict=True)
    ]


def _chances(rows: _Rows) -> dict[int, float]:
    """The p-value of each row that is compared with the first, by its position."""
    first = _first(rows)
    if first is None or first not in _with_intervals(rows):
        return {}
    others = {
        k: row
        for k, row in enumerate(rows)
        if row is not first and row["runs"] >= MIN_SEEDS and row["time_to_accuracy_s"] < math.inf
    }
    samples = [_paired(row, first) for row in others.values()]
    paired = all(is_paired for _, _, is_paired in samples)
    if paired:
        own = [_by_seed(row) for row in (first, *others.values())]
    else:
        own = [row["times_s"] for row in (first, *others.values())]
    return dict(zip(others, p_values(own, paired=paired), strict=True))


def _with_intervals(rows: _Rows) -> list[Mapping[Any, Any]]:
    """Those any of which might have been the first: none without a target, or a known time."""
    return [
        row
        for row in rows
        if row["runs"] >= MIN_SEEDS
        and pd.notna(row["target"])
        and not math.isnan(row["time_to_accuracy_s"])
    ]


def _first(rows: _Rows) -> Mapping[Any, Any] | None:
    finite = [row for row in rows if row["time_to_accuracy_s"] < math.inf]
    return min(finite, key=lambda row: row["time_to_accuracy_s"], default=None)


def _compared(rows: _Rows, alike: Set[int]) -> Iterator[dict[str, Any]]:
    """Of one situation, in which the rows at the positions `alike` are not told from the first."""
    finite = [row for row in rows if row["time_to_accuracy_s"] < math.inf]
    first = _first(rows)
    baselines = _baselines(rows)
    baseline = min(baselines, key=lambda row: row["time_to_accuracy_s"], default=None)
    largest = max(baselines, key=lambda row: row["mb_a_step"], default=None)
    for position, row in enumerate(rows):
        time_s = row["time_to_accuracy_s"]
        is_placed = time_s < math.inf
        earlier = sum(other["time_to_accuracy_s"] < time_s for other in finite)
        sent = math.nan if largest is None else largest["mb_a_step"]
        yield {
            "place": 1 + earlier if is_placed else math.nan,
            "ties_with_first": is_placed
            and row is not first
            and (position in alike or _ties(row, first)),
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
    speedup, interval = math.nan, UNKNOWN
    if baseline is not None and not row["shared_gpu"]:
        speedup = _ratio(baseline["time_to_accuracy_s"], row["time_to_accuracy_s"])
        if row is not baseline and not math.isnan(speedup) and _have_intervals(row, baseline):
            times, others, paired = _paired(baseline, row)
            interval = ratio_interval(times, others, paired=paired)
            if 0 < speedup < math.inf and not math.isnan(interval[0]):
                speedup = ratio(times, others, paired=paired)
    return {"speedup": speedup, "speedup_low": interval[0], "speedup_high": interval[1]}


def _ratio(value: float, other: float) -> float:
    """NaN for two misses, and where `other` is 0."""
    return value / other if other else math.nan


def _ties(row: Mapping[Any, Any], first: Mapping[Any, Any] | None) -> bool:
    if first is None:
        return False
    times, others, paired = _paired(row, first)
    return is_tie(times, others, paired=paired, model_error=0.0)


def _paired(row: Mapping[Any, Any], other: Mapping[Any, Any]) -> tuple[_Times, _Times, bool]:
    """The times of both, seed by seed; where seeds differ, come twice or are unknown, of all, not
    paired.
    """
    seeds = row["seeds"]
    is_unknown = any(map(pd.isna, (*seeds, *other["seeds"])))
    if is_unknown or len(set(seeds)) < len(seeds) or sorted(seeds) != sorted(other["seeds"]):
        return row["times_s"], other["times_s"], False
    of_other = dict(zip(other["seeds"], other["times_s"], strict=True))
    return row["times_s"], tuple(of_other[seed] for seed in seeds), True


def _by_seed(row: Mapping[Any, Any]) -> _Times:
    pairs = zip(row["seeds"], row["times_s"], strict=True)
    return tuple(time_s for _, time_s in sorted(pairs))


def _have_intervals(*rows: Mapping[Any, Any]) -> bool:
    return all(row["runs"] >= MIN_SEEDS for row in rows)
