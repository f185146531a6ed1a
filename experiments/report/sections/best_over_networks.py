"""Which algorithm is first on which network, as a map, and all of them by network."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.cells import describe, leading
from experiments.report.data import ReportData
from experiments.report.phrases import kinds, sentence, wrapped
from experiments.report.results_table import COMPARABLE, KEYS, comparable, shown, varies
from experiments.report.section import PageTable, Section
from host.words import counted, listed, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "The best algorithm over networks"

MAX_ROWS, MAX_COLUMNS = 16, 12

_NAME_WIDTH = 18

NETWORK = ["net", "tcp_options", "asked_rate_mbit", "cluster"]
"""A network, with workers of a kind at its ends."""
REST = [column for column in COMPARABLE if column not in NETWORK]
_ROW = [column for column in KEYS if column not in NETWORK]


def section(data: ReportData) -> Section:
    """Which algorithm is first on which network."""
    table = data.table.query("not shared_gpu and target.notna()")
    firsts = _firsts(table)
    if firsts.empty or len(firsts[NETWORK].drop_duplicates()) < 2:
        return Section(finding="The runs are of one network, or of none with a target: no map.")
    left_out = _left_out(_placed(firsts))
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(firsts)),
        notes=[left_out] if left_out else [],
        tables={"times_over_networks": times_over_networks(table)},
        drawings={"best_over_networks": partial(_figure, firsts, data)},
    )


def _firsts(table: pd.DataFrame) -> pd.DataFrame:
    """The first row of each comparable group, with the number of rows that tie with it."""
    if table.empty:
        return table
    return pd.concat(
        [group.head(1).assign(num_ties=group.ties_with_first.sum()) for group in comparable(table)]
    )


def _finding(mark: str, firsts: pd.DataFrame) -> str:
    reached = firsts.query("place == 1")
    if reached.empty:
        return sentence(["no algorithm reaches a target on any network"], mark)
    labels = list(reached.label.value_counts().index)
    said = [
        f"{label} is first on {_where(reached.loc[reached.label == label], firsts)}"
        for label in labels
    ]
    num_tied, num_missed = int((reached.num_ties > 0).sum()), len(firsts) - len(reached)
    if num_tied:
        said.append(f"in {num_tied} of {counted(len(firsts), 'field')} the first ties with another")
    if num_missed:
        said.append(f"in {num_missed} of {counted(len(firsts), 'field')} none reaches the target")
    return sentence(said, mark, names=labels)


def _where(rows: pd.DataFrame, firsts: pd.DataFrame) -> str:
    """The networks of `rows`; where a network has several fields, how many fields these are."""
    num_nets = len(firsts[NETWORK].drop_duplicates())
    if len(rows) == len(firsts):
        return f"each of {counted(num_nets, 'network')}"
    if len(firsts) == num_nets:
        return listed(map(network_name, rows.to_dict("records")))
    return f"{len(rows)} of {counted(len(firsts), 'field')} of the map"


def _placed(firsts: pd.DataFrame) -> pd.DataFrame:
    """With the "column" and the "row" of each field."""
    varying = [column for column in REST if varies(firsts, column)]
    return firsts.assign(
        column=[network_name(row) for row in firsts.to_dict("records")],
        row=[describe(firsts.loc[[i]], varying) or "all runs" for i in firsts.index],
    )


def _left_out(placed: pd.DataFrame) -> str:
    columns = max(len(set(placed["column"])) - MAX_COLUMNS, 0)
    rows = max(len(set(placed["row"])) - MAX_ROWS, 0)
    if not (columns or rows):
        return ""
    return (
        f"The map leaves out {counted(columns, 'network')} and {counted(rows, 'row')}, "
        "which the tables have."
    )


def _figure(firsts: pd.DataFrame, data: ReportData) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    firsts = _placed(firsts)
    columns = network_names(firsts)[:MAX_COLUMNS]
    rows = list(dict.fromkeys(firsts["row"]))[:MAX_ROWS]
    longest = max(len(word) for label in firsts.label for word in label.split())
    size_in = 2.6 + max(1.5, 0.085 * longest) * len(columns), 1.9 + 0.8 * len(rows)
    theme: Any = {"hatch.linewidth": 0.4}
    with matplotlib.rc_context(theme):
        figure = Figure(figsize=size_in, layout="constrained")
        axes = figure.add_subplot()
        fields = firsts.query("column in @columns and row in @rows")
        for field in fields.to_dict("records"):
            _draw(axes, columns.index(field["column"]), rows.index(field["row"]), field, data)
        _frame(axes, columns, rows)
        same = ("task", "model", "workers", "backend")
        figure.suptitle(textwrap.fill(describe(firsts, same), int(9 * size_in[0])))
        figure.draw_without_rendering()
    return figure


def _draw(axes: Axes, x: int, y: int, field: dict[Any, Any], data: ReportData) -> None:
    """A field in the colour of the algorithm that is first there, and by name."""
    from matplotlib.patches import Rectangle

    is_reached = field["place"] == 1
    empty: dict[str, Any] = {"facecolor": "0.9", "edgecolor": "0.25"}
    style = data.areas[field["label"]] if is_reached else empty
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, linewidth=0.8, **style))
    text = wrapped(field["label"], _NAME_WIDTH) + _below(field) if is_reached else "all missed"
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, text, ha="center", va="center", fontsize="small", bbox=box)


def _below(field: dict[Any, Any]) -> str:
    """The speed-up and the ties of a field."""
    lines = []
    if field["is_best_baseline"]:
        lines.append("the baseline")
    elif 0 < field["speedup"] < math.inf:
        lines.append(f"{significant(field['speedup'])} x the baseline")
    if field["num_ties"]:
        lines.append(f"ties with {counted(field['num_ties'], 'other')}")
    return "".join("\n" + line for line in lines)


def _frame(axes: Axes, columns: list[str], rows: list[str]) -> None:
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), [column.replace(", ", "\n") for column in columns])
    axes.set_yticks(range(len(rows)), [textwrap.fill(row, 30) for row in rows])
    axes.tick_params(length=0)
    axes.set_xlabel("network, from the slowest")


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
