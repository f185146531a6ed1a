"""Time to accuracy as a table of algorithms and networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.report.cells import leading
from experiments.report.results_table import COMPARABLE, KEYS, shown
from experiments.report.section import PageTable
from host.words import significant

NETWORK = ["net", "tcp_options", "asked_rate_mbit", "cluster"]
"""A network, with workers of a kind at its ends."""
REST = [column for column in COMPARABLE if column not in NETWORK]
_ROW = [column for column in KEYS if column not in NETWORK]


def network_name(row: Mapping[Any, Any]) -> str:
    """Such as "wan", "slow_tcp, 50 Mbit/s" or "lan_1g, 1000 Mbit/s, straggler=0.5": a network, its
    TCP where that is not Linux's own, the rate asked of it, and what its workers are like where
    they are not alike in all runs.
    """
    net, tcp, rate, cluster = (row[column] for column in NETWORK)
    asked = f"{rate:g} Mbit/s" if pd.notna(rate) else None
    parts = [shown("net", net), tcp, asked, cluster]
    return ", ".join(part for part in parts if pd.notna(part))


def network_names(table: pd.DataFrame) -> list[str]:
    """Of all networks of a `table` of settings, from the slowest."""
    names = pd.Series([network_name(row) for row in table.to_dict("records")], table.index)
    rates = table.asked_rate_mbit.fillna(math.inf).groupby(names).min()
    return list(rates.sort_values(kind="stable").index)


def times_over_networks(table: pd.DataFrame) -> PageTable:
    """Of settings that have a target and a time: a row for those that differ in the network alone,
    the best by its median place first.
    """
    situations = table.groupby(REST, dropna=False, sort=False).ngroup()
    table = table.assign(situation=situations, place=table.place.fillna(math.inf))
    rows = [row for _, row in table.groupby(_ROW, dropna=False, sort=False)]
    rows.sort(key=lambda row: (row.situation.iloc[0], row.place.median()))
    names = network_names(table)
    on_networks = [
        {network_name(setting): setting for setting in row.to_dict("records")} for row in rows
    ]
    columns = {name: [on.get(name) for on in on_networks] for name in names}
    alike = pd.concat([row.head(1) for row in rows], ignore_index=True)
    alike = alike.assign(net="", tcp_options=None, asked_rate_mbit=math.nan, cluster=None)
    seconds = {name: [_seconds(setting) for setting in columns[name]] for name in names}
    return PageTable(
        caption="Seconds until the target, by network: the median over seeds, in brackets how many "
        "runs missed. An asterisk marks the first on its network, and who ties with it.",
        cells=leading(alike)
        | {name: [_cell(setting) for setting in columns[name]] for name in names},
        numbers=pd.concat([alike[_ROW], pd.DataFrame(seconds)], axis=1),
    )


def _seconds(setting: Mapping[Any, Any] | None) -> float:
    return math.nan if setting is None else setting["time_to_accuracy_s"]


def _cell(setting: Mapping[Any, Any] | None) -> str:
    """Such as "41.2 *", "1,340", "41.2 (missed 1/3)", "missed", or "-" where none was run."""
    if setting is None:
        return "-"
    seconds = setting["time_to_accuracy_s"]
    if math.isinf(seconds):
        return "missed"
    text = significant(seconds)
    if setting["missed"]:
        text += f" (missed {setting['missed']}/{setting['runs']})"
    return text + (" *" if setting["place"] == 1 or setting["ties_with_first"] else "")
