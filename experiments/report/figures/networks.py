"""Networks by name, and situations in the order of figures: from the fastest network on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.report.results_table import COMPARABLE, shown

NETWORK = ["net", "net_options", "tcp_options", "asked_rate_mbit", "cluster"]
"""A network, with workers of a kind at its ends."""
REST = [column for column in COMPARABLE if column not in NETWORK]


def network_name(row: Mapping[Any, Any]) -> str:
    """Such as "wan", "slow_tcp, 50 Mbit/s" or "lan_1g, 1000 Mbit/s, straggler=0.5": a network, its
    options that other runs on it have otherwise, its TCP where that is not Linux's own, the rate
    asked of it, and what its workers are like where they are not alike in all runs.
    """
    net, options, tcp, rate, cluster = (row[column] for column in NETWORK)
    asked = f"{rate:g} Mbit/s" if pd.notna(rate) else None
    parts = [shown("net", net), options, tcp, asked, cluster]
    return ", ".join(part for part in parts if pd.notna(part))


def network_names(table: pd.DataFrame) -> list[str]:
    """Of all networks of a `table` of settings, from the slowest."""
    names = pd.Series([network_name(row) for row in table.to_dict("records")], table.index)
    rates = table.asked_rate_mbit.fillna(math.inf).groupby(names).min()
    return list(rates.sort_values(kind="stable").index)


def fast_first(groups: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Groups of rows, each of one network: what differs in more than that apart, then the networks
    from the highest rate on; at equal rates the one first with which the baseline, else the best
    algorithm, takes the least time, then by name.
    """
    if not groups:
        return []
    firsts = pd.concat([group.head(1) for group in groups])
    rest = [column for column in REST if column in firsts]
    kinds = firsts.groupby(rest, dropna=False).ngroup().tolist()

    def key(at: int) -> tuple[Any, ...]:
        group = groups[at]
        rate = group.asked_rate_mbit.fillna(math.inf).min()
        own = group.loc[group.is_best_baseline, "time_to_accuracy_s"]
        times = own if len(own) else group.time_to_accuracy_s
        seconds = times.fillna(math.inf).min()
        return kinds[at], -rate, seconds, network_name(group.iloc[0].to_dict())

    return [groups[at] for at in sorted(range(len(groups)), key=key)]
