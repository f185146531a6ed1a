"""How far simulated runs are off real ones, as Markdown: times to accuracy, seconds a step, and who
is first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.advise.advise import slowest_rate_mbit
from experiments.report.configurations import check_alike, check_sides
from experiments.report.results_table import SHARED, named, results_table
from experiments.report.statistics import is_tie, prediction_error
from experiments.runs.load import load_config, load_runs
from host.errors import UserError
from host.words import significant
from netsim.conditions.condition import NetworkCondition

NETS = ("none", "lan_1g", "slow_tcp", "wan", "lossy", "one_slow_worker")
SEED = 0
"""The seed whose runs are compared."""

_WORKERS = {False: "real", True: "simulated"}
_OF_A_SETTING = ("task", "model", "workers", "net", "optim", "lr_scale")


def times_to_accuracy(measured: Path, predicted: Path) -> str:
    """Predicted over measured time to accuracy of each algorithm that both have on all networks of
    `NETS`, and how alike the orders of the algorithms are. Median and error are of the algorithms
    that reached the target in both.

    Raises `UserError` for a folder without runs on all of them, or with several settings of an
    algorithm, where both have no algorithm in common, and where the runs of one are of another
    setting, network, task or target than those of the other, or some than others.
    """
    real = _of_seed(measured, is_simulated=False)
    simulated = _of_seed(predicted, is_simulated=True)
    seconds = _by_net(results_table(real), measured)
    foreseen = _by_net(results_table(simulated), predicted)
    common = _common(seconds.dropna().index, foreseen.dropna().index, measured, predicted)
    _check_table(real, simulated, common)
    names = seconds.loc[common].median(axis=1).sort_values().index
    seconds, foreseen = seconds.loc[names], foreseen.loc[names]
    rows = {
        str(name): [_ratio(seconds.loc[name, net], foreseen.loc[name, net]) for net in NETS]
        for name in names
    }
    rows |= {f"**{name}**": cells for name, cells in _summary(seconds, foreseen).items()}
    return _markdown(("algorithm", *NETS), rows)


def seconds_a_step(measured: Path, predicted: Path) -> str:
    """Seconds a step of real workers, of simulated ones, and their ratio, of each algorithm that
    both have.

    Raises `UserError` for a folder without such runs, or with several of an algorithm, where both
    have no algorithm in common, and where its runs are of another setting or network.
    """
    runs = _runs(measured, is_simulated=False), _runs(predicted, is_simulated=True)
    real, simulated = (_steps(own, at) for own, at in zip(runs, (measured, predicted), strict=True))
    common = _common(real.index, simulated.index, measured, predicted)
    both = pd.concat(runs)
    for algo in common:
        check_sides(both.loc[both.algo == algo], _OF_A_SETTING, f"the runs of {algo}")
    rows = {
        str(name): [
            *(_number(s, ".3f"), _number(simulated[name], ".3f")),
            _number(simulated[name] / s, ".2f"),
        ]
        for name, s in real.loc[common].sort_values().items()
    }
    return _markdown(("algorithm", "real", "simulated", "ratio"), rows)


def first_places(measured: Path, predicted: Path) -> str:
    """Which algorithm is first on each network of `NETS`, of those that both have on all: by the
    median of the measured runs, and by the predicted ones of `SEED`; and whether the two agree, or
    tie. They tie where the measured times of both do by the rules of a report's page, or their
    predicted times are within the error of such predictions on that network, by the rate of its
    slowest link, as in advice.

    Raises `UserError` as `times_to_accuracy` does.
    """
    predictions = _of_seed(predicted, is_simulated=True)
    foreseen = _by_net(results_table(predictions), predicted).dropna()
    runs = named(_runs(measured, is_simulated=False))
    common = _common(pd.Index(runs["name"]), foreseen.index, measured, predicted)
    table = results_table(runs.loc[runs["name"].isin(list(common))])
    common = _common(_by_net(table, measured).dropna().index, common, measured, predicted)
    _check_table(runs, predictions, common)
    table = table.loc[table["name"].isin(list(common))]
    rows = {}
    for net in NETS:
        simulated = {str(name): foreseen.loc[name, net] for name in common}
        error = prediction_error(_slowest_rate_mbit(runs.loc[runs.net == net].iloc[0]))
        rows[net] = _firsts(simulated, table.loc[table.net == net], error)
    headers = ("first, real", "s", "first, simulated", "s, simulated", "s, real", "the two")
    return _markdown(("network", *headers), rows)


def _slowest_rate_mbit(run: pd.Series) -> float | None:
    """Of the links that a run had. Raises `UserError` where its configuration does not say."""
    net = load_config(run.folder).get("net") or {}
    try:
        condition = NetworkCondition(**{k: v for k, v in net.items() if not k.startswith("_")})
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"The network of {run.folder} does not follow from its configuration ({error}): give a "
            "folder without that run"
        ) from error
    return slowest_rate_mbit(condition, int(run.workers))


def _firsts(simulated: dict[str, float], rows: pd.DataFrame, error: float) -> list[str]:
    """The cells of one network, of predicted times by algorithm, which are off by `error`, and of
    measured rows.
    """
    real = dict(zip(rows["name"], rows.time_to_accuracy_s, strict=True))
    first, other = _first(real), _first(simulated)
    times = [_time(real, first), _time(simulated, other), _time(real, other)]
    verdict = _verdict(first, other, simulated, rows, error)
    return [first or "-", times[0], other or "-", *times[1:], verdict]


def _first(times: Mapping[str, float]) -> str | None:
    """None where all have missed."""
    return min(times, key=times.__getitem__) if min(times.values()) < math.inf else None


def _time(times: Mapping[str, float], name: str | None) -> str:
    if name is None:
        return "-"
    return "missed" if math.isinf(times[name]) else significant(times[name])


def _verdict(
    first: str | None,
    other: str | None,
    simulated: Mapping[str, float],
    rows: pd.DataFrame,
    error: float,
) -> str:
    """On the `first`, measured, and the `other`, predicted."""
    if first is None or other is None:
        return "all missed" if first == other else "differ"
    pair = [simulated[first]], [simulated[other]]
    if first == other:
        return "agree"
    if rows.ties_with_first[rows["name"] == other].any():
        return "tie, measured"
    if is_tie(*pair, paired=True, model_error=error):
        return f"tie, within the error of {100 * error:.0f} %"
    return "differ"


def _runs(folder: Path, *, is_simulated: bool) -> pd.DataFrame:
    runs = load_runs(folder)
    runs = runs.loc[(runs.backend == "sim") == is_simulated]
    if runs.empty:
        raise UserError(f"{folder} has no run of {_WORKERS[is_simulated]} workers")
    return runs


def _of_seed(folder: Path, *, is_simulated: bool) -> pd.DataFrame:
    """The runs of the one seed, `named`."""
    runs = _runs(folder, is_simulated=is_simulated)
    runs = runs.loc[runs.seed == SEED]
    if missing := [net for net in NETS if net not in set(runs.net)]:
        raise UserError(
            f"{folder} has no run of {_WORKERS[is_simulated]} workers, seed {SEED}, on "
            f"{', '.join(missing)}"
        )
    return named(runs)


def _check_table(real: pd.DataFrame, simulated: pd.DataFrame, names: pd.Index) -> None:
    """Raise `UserError` where runs of a table of these `names`, by network, cannot be compared: a
    name tells no more than what varies among the runs of its own folder.
    """
    runs = pd.concat([real, simulated])
    runs = runs.loc[runs["name"].isin(list(names)) & runs.net.isin(NETS)]
    check_alike(runs, ("task", "model", "workers", "target"), only=SHARED)
    for net, own in runs.groupby("net"):
        check_alike(own, called=f"the runs on {net}", but=("net.backend",), only=("net.",))
    for (name, net), own in runs.groupby(["name", "net"]):
        check_sides(own, _OF_A_SETTING, f"the runs of {name} on {net}")


def _by_net(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Times to accuracy: a row an algorithm, a column a network of `NETS`."""
    table = table.loc[table.net.isin(NETS)]
    again = table.loc[table.duplicated(["name", "net"])]
    if len(again):
        name, net = again.iloc[0][["name", "net"]]
        raise UserError(f"{folder} has several settings of {name} on {net}: give a folder with one")
    by_net = table.pivot(index="name", columns="net", values="time_to_accuracy_s")
    return by_net.reindex(columns=list(NETS))


def _common(real: pd.Index, simulated: pd.Index, measured: Path, predicted: Path) -> pd.Index:
    """The algorithms of both. Raises `UserError` where there is none."""
    common = simulated.intersection(real)
    if common.empty:
        raise UserError(
            f"no algorithm has real runs in {measured} and simulated ones in {predicted}: give "
            "folders of the same algorithms"
        )
    return common


def _summary(measured: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, list[str]]:
    from scipy.stats import kendalltau

    ratio = predicted / measured
    ratio = ratio.where(np.isfinite(ratio) & np.isfinite(measured))  # reached in both
    errors = {net: 100 * (ratio[net] - 1).abs().mean() for net in NETS}
    taus = [np.asarray(kendalltau(measured[net], predicted[net]))[0] for net in NETS]
    return {
        "median": [_number(ratio[net].median(), ".2f") for net in NETS],
        "mean absolute error": [_number(errors[net], ".0f", " %") for net in NETS],
        "Kendall's tau of the orders": [_number(tau, ".2f") for tau in taus],
        "first, measured": [_first(measured[net].to_dict()) or "-" for net in NETS],
        "first, predicted": [_first(predicted[net].to_dict()) or "-" for net in NETS],
    }


def _ratio(measured_s: float, predicted_s: float) -> str:
    """Such as "0.98", or "missed, measured" where only the real run did."""
    missed = [
        name
        for name, time_s in (("measured", measured_s), ("predicted", predicted_s))
        if math.isinf(time_s)
    ]
    if missed:
        return "both missed" if len(missed) > 1 else f"missed, {missed[0]}"
    return f"{predicted_s / measured_s:.2f}"


def _number(value: Any, digits: str, unit: str = "") -> str:
    return f"{value:{digits}}{unit}" if math.isfinite(value) else "-"


def _steps(runs: pd.DataFrame, folder: Path) -> pd.Series:
    if runs.algo.duplicated().any():
        algo = runs.algo[runs.algo.duplicated()].iloc[0]
        raise UserError(f"{folder} has several runs of {algo}: give a folder with one")
    return pd.Series(1 / runs.steps_per_s.to_numpy(), index=runs.algo)


def _markdown(headers: tuple[str, ...], rows: dict[str, list[str]]) -> str:
    rules = ["---", *["---:"] * (len(headers) - 1)]
    lines = [headers, rules, *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
