"""Which algorithm is first on which network, as a map, and all of them by network."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.cells import describe, leading
from experiments.report.data import ReportData
from experiments.report.figures.column import Panel, column
from experiments.report.figures.names import LINE_IN, narrow, text_width_in
from experiments.report.figures.networks import NETWORK, REST, network_name, network_names
from experiments.report.figures.styles import algorithm_of, lighter, style_of
from experiments.report.phrases import kinds, sentence, so_far
from experiments.report.results_table import AT_WORK, KEYS, comparable, varies
from experiments.report.section import PageTable, Section
from host.words import counted, listed, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "The best algorithm over networks"

MAX_ROWS, MAX_COLUMNS = 16, 12

_NAME_WIDTH = 18
_FRAME_IN, _PAD_IN = 2.5, 0.05
_TITLE_LETTERS = 44
_ALL = "all runs"
_NOBODY = "#e6e6e6"

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
    """The first row of each comparable group, with the number of rows that tie with it, the time of
    the next, and what `so_far` says of the group.
    """
    if table.empty:
        return table
    return pd.concat(
        [
            group.head(1).assign(
                num_ties=group.ties_with_first.sum(),
                second_s=group.time_to_accuracy_s.iloc[1] if len(group) > 1 else math.inf,
                so_far=so_far(group.time_to_accuracy_s),
            )
            for group in comparable(table)
        ]
    )


def _finding(mark: str, firsts: pd.DataFrame) -> str:
    reached = firsts.query("place == 1")
    others = firsts.query("place != 1").so_far
    if reached.empty:
        return sentence([f"no algorithm reaches a target on any network{others.max()}"], mark)
    labels = list(reached.label.value_counts().index)
    said = [
        f"{label} is first on {_where(reached.loc[reached.label == label], firsts)}"
        for label in labels
    ]
    num_tied, fields = int((reached.num_ties > 0).sum()), counted(len(firsts), "field")
    if num_tied:
        said.append(f"in {num_tied} of {fields} the first ties with another")
    for when, number in sorted(others.value_counts().items()):
        said.append(f"in {number} of {fields} none reaches the target{when}")
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
        row=[describe(firsts.loc[[i]], varying) or _ALL for i in firsts.index],
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
    firsts = _placed(firsts)
    nets = _fast_first(firsts)[-MAX_COLUMNS:]
    order = firsts.groupby(REST, dropna=False).ngroup().sort_values(kind="stable").index
    rows = list(dict.fromkeys(firsts.loc[order, "row"]))[:MAX_ROWS]
    fields = firsts.query("column in @nets and row in @rows").to_dict("records")
    texts = {(f["row"], f["column"]): _text(f) for f in fields}
    widest_in = max(text_width_in(line) for text in texts.values() for line in text.split("\n"))
    num_columns = max(1, min(len(rows), int(_FRAME_IN / (widest_in + _PAD_IN))))
    colors = winner_colors([f["label"] for f in fields if f["place"] == 1])
    panels = []
    for begin in range(0, len(rows), num_columns):
        own = rows[begin : begin + num_columns]
        lines = [max(texts.get((r, n), "").count("\n") + 1 for r in own) for n in nets]
        sizes = [
            max(count, net.count(",") + 1) * LINE_IN + 2 * _PAD_IN
            for count, net in zip(lines, nets, strict=True)
        ]
        draw = partial(
            _draw_panel, fields=fields, texts=texts, colors=colors, nets=nets, rows=own, sizes=sizes
        )
        panels.append(Panel(title="", draw=draw, height_in=sum(sizes)))
    same = ("task", "model", "workers", "backend")
    note = (
        "Numbers: how many times as soon as the best baseline; where that is first or missed, or "
        "none was run, as the next. Alone: the others missed."
    )
    return column(panels, describe(firsts, same), note)


def _fast_first(placed: pd.DataFrame) -> list[str]:
    """Names of networks, from the highest rate on; at equal rates where the first is sooner."""
    by_net = placed.groupby("column")
    order = pd.DataFrame(
        {
            "rate": -by_net.asked_rate_mbit.min().fillna(math.inf),
            "seconds": by_net.time_to_accuracy_s.median(),
        }
    )
    return list(order.sort_values(["rate", "seconds"], kind="stable").index)


def winner_colors(labels: Iterable[str]) -> dict[str, str]:
    """Of each, one that no other has: that of its algorithm, lighter for further labels of it."""
    colors: dict[str, str] = {}
    for label in sorted(set(labels)):
        share = 0.35
        while (color := lighter(style_of(algorithm_of(label)).color, share)) in colors.values():
            share += 0.13
        colors[label] = color
    return colors


def _draw_panel(
    axes: Axes,
    *,
    fields: Sequence[Mapping[Any, Any]],
    texts: Mapping[tuple[str, str], str],
    colors: Mapping[str, str],
    nets: Sequence[str],
    rows: Sequence[str],
    sizes: Sequence[float],
) -> None:
    """A field in the colour of the algorithm that is first there, and by name; inches downwards."""
    from matplotlib.patches import Rectangle

    tops = [0.0, *accumulate(sizes)]
    for field in fields:
        if field["row"] not in rows:
            continue
        x, y = rows.index(field["row"]), nets.index(field["column"])
        color = colors[field["label"]] if field["place"] == 1 else _NOBODY
        box = {"facecolor": color, "edgecolor": "0.25", "linewidth": 0.5}
        axes.add_patch(Rectangle((x - 0.5, tops[y]), 1, sizes[y], **box))
        light = {
            "boxstyle": "round,pad=0.15",
            "facecolor": "white",
            "edgecolor": "none",
            "alpha": 0.8,
        }
        text = texts[field["row"], field["column"]]
        middle = tops[y] + sizes[y] / 2
        axes.text(x, middle, text, ha="center", va="center", linespacing=1.1, bbox=light)
    middles = [top + size / 2 for top, size in zip(tops, sizes, strict=False)]
    axes.set(xlim=(-0.5, len(rows) - 0.5), ylim=(tops[-1], 0))
    axes.set_yticks(middles, [net.replace(", ", "\n") for net in nets])
    width = int(_TITLE_LETTERS / len(rows))
    said = [textwrap.fill(row, width) if row != _ALL else "" for row in rows]
    axes.set_xticks(range(len(rows)), said)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)


def _text(field: Mapping[Any, Any]) -> str:
    """Who is first in a field, and by how much."""
    if field["place"] != 1:
        return AT_WORK if field["so_far"] else "all missed"
    lines = [narrow(field["label"], _NAME_WIDTH)]
    by = field["speedup"]
    if field["is_best_baseline"]:
        lines.append("the baseline")
    if field["is_best_baseline"] or field["baseline"] is None or by == math.inf:
        seconds = field["time_to_accuracy_s"]
        by = field["second_s"] / seconds if seconds else math.nan
    if 0 < by < math.inf:
        lines.append(f"{significant(by)} x")
    elif by == math.inf and not field["so_far"]:
        lines.append("alone")
    if field["num_ties"]:
        lines.append(f"ties with {field['num_ties']}")
    return "\n".join(lines)


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
    alike = alike.assign(net="", net_options=None, tcp_options=None)
    alike = alike.assign(asked_rate_mbit=math.nan, cluster=None)
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
    """Such as "41.2 *", "1,340", "41.2 (missed 1/3)", "missed", "not ended", or "-" where none was
    run.
    """
    if setting is None:
        return "-"
    seconds = setting["time_to_accuracy_s"]
    if not seconds < math.inf:
        return AT_WORK if math.isnan(seconds) else "missed"
    text = significant(seconds)
    if setting["missed"]:
        text += f" (missed {setting['missed']}/{setting['runs']})"
    return text + (" *" if setting["place"] == 1 or setting["ties_with_first"] else "")
