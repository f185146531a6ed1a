"""One table and one plot for any set of runs.

    python -m experiments.compare results/runs
    python -m experiments.compare results/runs --out figures

Runs that differ in nothing but their seed are one row: the medians over them. A run that missed the
target counts as one that takes for ever; it is never dropped.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.errors import UserError
from experiments.records import load_metrics, load_runs

if TYPE_CHECKING:  # imported where it draws: half a second that the table need not wait for
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
DETAIL = {"backend": "{}", "optim": "optimizer {}", "evaluated_model": "evaluated: {}"}

_HEADERS = {
    "net": "network",
    "asked_rate_mbit": "Mbit/s asked",
    "target_accuracy": "target",
    "optim": "optimizer",
    "evaluated_model": "evaluated",
}
_MARKERS = "osD^vP<>ph"
_DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def compare(path: str | Path, out: str | Path | None = None) -> None:
    """Prints the table of all runs at or below `path`; writes accuracy.png and .svg to `out`.

    Args:
        path: a folder of runs, or one run's.
        out: the folder for the plot, made where it does not exist; by default `path`.

    Raises:
        UserError: there is no such folder, it holds no run, or `out` cannot be written.
    """
    runs, metrics = load_runs(path), load_metrics(path)
    problems = metrics.attrs["problems"]
    if runs.empty:
        raise UserError(" ".join([f"There is no run in {path}.", *problems]))
    console = Console(width=None if sys.stdout.isatty() else 250)
    console.print(render(settings(runs), runs))
    figure = accuracy_plot(runs, metrics)
    plots = _save(figure, Path(path if out is None else out)) if figure else []
    notes = [*remarks(runs), *problems, *(f"Plot: {file}" for file in plots)]
    for note in notes if plots else [*notes, "No run was evaluated: there is nothing to plot."]:
        console.print(Text(note), soft_wrap=True)


def names(runs: pd.DataFrame) -> pd.Series:
    """For each run its algorithm, with the options of its configuration that vary among such runs.

    So runs of one algorithm with `bits` of 4 and of 8 are two algorithms, not two seeds of one.
    """
    configs = {folder: _read_config(Path(folder)) for folder in runs["folder"]}
    varying: dict[str, set[str]] = defaultdict(set)
    for _, group in _groups(runs, [*SITUATION, *DETAIL, "algo"]):
        varying[group["algo"].iloc[0]] |= _differing([configs[f] for f in group["folder"]])
    full = [
        " ".join([algo, *(f"{key}={configs[folder].get(key)}" for key in sorted(varying[algo]))])
        for folder, algo in zip(runs["folder"], runs["algo"], strict=True)
    ]
    return pd.Series(full, index=runs.index, dtype="str")


def settings(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a setting: the runs (of `load_runs`) that differ in nothing but their seed.

    Columns: those of SITUATION and DETAIL; "name" (see `names`); "runs" and, of these, "missed";
    the medians, of which `time_to_accuracy_s` is inf where the median run missed, and `low` and
    `high`, its bootstrap interval, are NaN for fewer than three runs; "status".
    Rows are sorted by situation, then by time to accuracy, misses last.
    """
    keys = [*SITUATION, *DETAIL, "name"]
    groups = [group for _, group in _groups(runs.assign(name=names(runs)), keys)]
    what = pd.concat([group[keys].head(1) for group in groups], ignore_index=True)
    table = what.join(pd.DataFrame([_outcome(group) for group in groups]))
    by_accuracy = table.sort_values("final_accuracy", ascending=False)
    return by_accuracy.sort_values(
        [*SITUATION, "time_to_accuracy_s"], kind="stable", ignore_index=True
    )


def bootstrap_interval(values: Sequence[float], resamples: int = 10_000) -> tuple[float, float]:
    """The 95 % percentile-bootstrap interval of the median; values and bounds may be inf."""
    sample = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(len(sample), size=(resamples, len(sample)))
    medians = np.median(sample[picks], axis=1)
    # Bounds that are medians themselves: one cannot interpolate between a number and inf.
    low, high = np.quantile(medians, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def describe(runs: pd.DataFrame, columns: Iterable[str]) -> str:
    """Says the values of those columns of SITUATION and DETAIL that have one value in all runs."""
    phrases = SITUATION | DETAIL
    same = [c for c in columns if runs[c].notna().all() and runs[c].nunique() == 1]
    return ", ".join(phrases[c].format(_shown(c, runs[c].iloc[0])) for c in same)


def render(table: pd.DataFrame, runs: pd.DataFrame) -> Table:
    """The rows of `settings(runs)`, to be printed; what all runs share stands above and below."""
    title = describe(runs, ["task", "model", "net", "workers", "backend"])
    caption = describe(runs, ["target_accuracy", "optim", "evaluated_model", "asked_rate_mbit"])
    rendered = Table(title=Text(title, style="bold"), caption=Text(caption + _measured(runs)))
    columns = _columns(table)
    words = {"algorithm", "status", *(_header(c) for c in ["task", "model", "net", *DETAIL])}
    for header in columns:
        rendered.add_column(header, justify="left" if header in words else "right")
    situation = table[list(SITUATION)].astype("object").fillna("")
    ends = situation.ne(situation.shift(-1)).any(axis="columns")
    for cells, end in zip(zip(*columns.values(), strict=True), ends, strict=True):
        rendered.add_row(*map(Text, cells), end_section=bool(end))
    return rendered


def remarks(runs: pd.DataFrame) -> list[str]:
    """A line for each run that did not complete: its folder, its status and the reason."""
    ended = runs[runs["status"] != "completed"]
    reasons = ended["reason"].fillna("no reason was recorded")
    return [
        f"{folder} {status}: {reason}"
        for folder, status, reason in zip(ended["folder"], ended["status"], reasons, strict=True)
    ]


def accuracy_plot(runs: pd.DataFrame, metrics: pd.DataFrame) -> Figure | None:
    """Accuracy over training time, a panel for each situation; None where no run was evaluated."""
    evaluations = metrics[(metrics["kind"] == "evaluation") & metrics["accuracy"].notna()]
    if evaluations.empty:
        return None
    import matplotlib
    import seaborn
    from matplotlib.figure import Figure

    runs = runs.assign(label=labels(runs))
    situations = [group for _, group in _groups(runs, list(SITUATION))]
    num_columns = min(len(situations), 3)
    num_rows = math.ceil(len(situations) / num_columns)
    width_in = 4.2 * num_columns + 1.2 + 0.085 * runs["label"].str.len().max()
    with matplotlib.rc_context(seaborn.axes_style("whitegrid")):
        figure = Figure(figsize=(width_in, 3.6 * num_rows + 0.6), layout="constrained")
        panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
        styles = _styles(runs["label"])
        for panel, group in zip(panels, situations, strict=False):
            _draw(panel, group, evaluations, styles)
            own = [c for c in SITUATION if runs[c].nunique(dropna=False) > 1]
            panel.set_title(describe(group, own), fontsize="medium")
        for panel in list(panels)[len(situations) :]:
            panel.remove()
        title = describe(runs, ["task", "model", "net", "workers", "backend"])
        figure.suptitle(textwrap.fill(title, int(9 * width_in)))
        entries = {e.get_label(): e for p in figure.axes for e in p.get_legend_handles_labels()[0]}
        figure.legend(handles=list(entries.values()), loc="outside right upper", frameon=False)
    return figure


def labels(runs: pd.DataFrame) -> pd.Series:
    """For each run the name of its line: of `names`, with the details that tell it from others."""
    label = names(runs)
    for column in DETAIL:
        varies = runs[column].groupby(label).transform("nunique") > 1
        if column == "backend":  # simulated is never unlabelled beside measured
            varies |= runs[column].nunique() > 1
        shown = pd.Series([_shown(column, value) for value in runs[column]], index=runs.index)
        label = label.where(~varies, label + ", " + shown)
    return label


def curve(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Of the runs' k-th evaluations: the median time and accuracy, least and greatest accuracy."""
    return evaluations.groupby(evaluations.groupby("folder").cumcount()).agg(
        time_s=("time_s", "median"),
        accuracy=("accuracy", "median"),
        least=("accuracy", "min"),
        greatest=("accuracy", "max"),
    )


def _groups(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    return iter(frame.groupby(keys, dropna=False))


def _read_config(folder: Path) -> dict[str, Any]:
    """The configuration as {"algo.bits": 8}; empty where it cannot be read."""
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


def _outcome(group: pd.DataFrame) -> dict[str, Any]:
    """What came of the runs of one setting."""
    times = group["time_to_accuracy_s"].fillna(math.inf).to_numpy()
    low, high = bootstrap_interval(times) if len(group) >= 3 else (math.nan, math.nan)
    return {
        "runs": len(group),
        "missed": int(np.isinf(times).sum()),
        "time_to_accuracy_s": float(np.median(times)),
        "low": low,
        "high": high,
        "final_accuracy": group["final_accuracy"].median(),
        "steps_per_s": group["steps_per_s"].median(),
        "mb_sent_per_worker": group["bytes_sent_per_worker"].median() / 1e6,
        "exposed_communication_s": group["exposed_communication_s"].median(),
        "achieved_rate_mbit": group["achieved_rate_mbit"].median(),
        "status": _status(group["status"]),
    }


def _status(status: pd.Series) -> str:
    """Such as "completed", "failed" (of one run) or "1 of 3 diverged"."""
    counts = status[status != "completed"].fillna("failed").value_counts().sort_index()
    if counts.empty:
        return "completed"
    of = len(status)
    return ", ".join(str(s) if of == 1 else f"{n} of {of} {s}" for s, n in counts.items())


def _columns(table: pd.DataFrame) -> dict[str, list[str]]:
    """The cells of the printed table; a column that says nothing is left out."""
    leading = [c for c in SITUATION | DETAIL if table[c].nunique(dropna=False) > 1]
    columns = {_header(c): [_shown(c, value) for value in table[c]] for c in leading}
    if "asked_rate_mbit" in leading:
        columns["Mbit/s measured"] = _numbers(table["achieved_rate_mbit"], ".4g")
    columns["algorithm"] = table["name"].tolist()
    if (table["runs"] > 1).any():
        columns["seeds"] = [str(n) for n in table["runs"]]
    columns |= {
        "time to accuracy (s)": [_time_cell(row) for _, row in table.iterrows()],
        "final accuracy (test)": _numbers(table["final_accuracy"], ".4f"),
        "steps/s": _numbers(table["steps_per_s"], ".4g"),
        "MB sent per worker": _numbers(table["mb_sent_per_worker"], ",.1f"),
        "exposed communication (s)": _numbers(table["exposed_communication_s"], ",.1f"),
    }
    if (table["status"] != "completed").any():
        columns["status"] = ["" if s == "completed" else s for s in table["status"]]
    return columns


def _header(column: str) -> str:
    return _HEADERS.get(column, column)


def _shown(column: str, value: Any) -> str:
    if pd.isna(value):
        return "-"
    if column == "backend" and value == "sim":
        return "simulated"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(values: pd.Series, form: str) -> list[str]:
    return ["-" if pd.isna(value) else format(value, form) for value in values]


def _time_cell(row: pd.Series) -> str:
    """Such as "41.2", "41.2 (38.0 to 45.1)", "41.2 (38.0 to missed), missed (1/3)" or "missed"."""
    if pd.isna(row["target_accuracy"]):
        return "no target"
    missed = f"missed ({row['missed']}/{row['runs']})" if row["runs"] > 1 else "missed"
    if math.isinf(row["time_to_accuracy_s"]):
        return missed
    low, high = ("missed" if math.isinf(t) else f"{t:,.1f}" for t in (row["low"], row["high"]))
    interval = f" ({low} to {high})" if row["runs"] >= 3 else ""
    suffix = f", {missed}" if row["missed"] else ""
    return f"{row['time_to_accuracy_s']:,.1f}{interval}{suffix}"


def _measured(runs: pd.DataFrame) -> str:
    rates = runs["achieved_rate_mbit"].dropna()
    if rates.empty or runs["asked_rate_mbit"].nunique() > 1:
        return ""
    low, high = f"{rates.min():.4g}", f"{rates.max():.4g}"
    return f", {low if low == high else f'{low} to {high}'} Mbit/s measured"


def _styles(label: pd.Series) -> dict[str, dict[str, Any]]:
    """A colour, a marker and a dash for each line, the same in all panels."""
    import seaborn

    cycles = zip(cycle(seaborn.color_palette("colorblind")), cycle(_MARKERS), cycle(_DASHES))
    return {
        name: {"color": color, "marker": marker, "linestyle": dash}
        for name, (color, marker, dash) in zip(sorted(set(label)), cycles, strict=False)
    }


def _draw(
    panel: Axes, runs: pd.DataFrame, evaluations: pd.DataFrame, styles: dict[str, dict[str, Any]]
) -> None:
    """The lines of one situation, its target, and a cross where a run ended before its time."""
    target = runs["target_accuracy"].iloc[0]
    same_task = evaluations[evaluations["task"].isin(runs["task"])]
    bottom, top = _limits(same_task["accuracy"], target)
    for label, group in runs.groupby("label"):
        own = evaluations[evaluations["folder"].isin(group["folder"])]
        line = curve(own)
        every = max(1, len(line) // 10)
        panel.plot(line["time_s"], line["accuracy"], label=label, markevery=every, **styles[label])
        if len(group) > 1:
            band = {"color": styles[label]["color"], "alpha": 0.2, "linewidth": 0}
            panel.fill_between(line["time_s"], line["least"], line["greatest"], **band)
        broken = group.loc[group["status"] != "completed", "folder"]
        ends = own[own["folder"].isin(broken)].groupby("folder").tail(1)
        if not ends.empty:
            cross = {"marker": "x", "markersize": 10, "markeredgewidth": 2, "linestyle": "none"}
            heights = ends["accuracy"].clip(lower=bottom)
            panel.plot(ends["time_s"], heights, color="black", label="diverged or failed", **cross)
    if pd.notna(target):
        panel.axhline(target, color="0.3", linestyle="--", linewidth=1, label="target")
    panel.set(xlabel="training time (s)", ylabel="validation accuracy")
    panel.set_ylim(bottom, top)
    panel.set_xlim(left=0)


def _limits(accuracies: pd.Series, target: float) -> tuple[float, float]:
    """The upper three quarters of the evaluations: where curves start tells them not apart."""
    low, high = accuracies.quantile(0.25), np.fmax(accuracies.max(), target)
    margin = 0.05 * max(high - low, 0.02)
    return low - margin, high + margin


def _save(figure: Figure, out: Path) -> list[Path]:
    files = [out / "accuracy.png", out / "accuracy.svg"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            figure.savefig(file, dpi=150)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose --out.") from error
    return files


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare", description="One table and one plot for many runs."
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of runs, or one run's")
    parser.add_argument("--out", help="the folder for accuracy.png and .svg; by default DIR")
    arguments = parser.parse_args()
    try:
        compare(arguments.dir, arguments.out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
