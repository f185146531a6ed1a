"""Builds the page of a report: its sections, and all runs to explore, in one file of HTML.

What runs there stands in script/, a file for each part; `SCRIPTS` names them in their order.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from experiments.report.data import MAX_PANELS, ReportData
from experiments.report.figures.styles import algorithm_of, style_of
from experiments.report.page.fragments import fragments
from experiments.report.page.libraries import data_tables, vega
from experiments.report.page.packing import (
    ROUNDED_DIGITS,
    packed_json,
    packed_numbers,
    rounded,
    shared,
)
from experiments.report.page.rules import rules
from experiments.report.page.run_table import run_table
from experiments.report.page.situations import situations
from experiments.report.results_table import AT_WORK, comparable
from experiments.report.section import Section
from experiments.report.sections import SECTIONS, SectionModule
from experiments.report.targets.curves import AXES, Curves
from experiments.report.targets.times import settings_of_runs
from host.remaining import Work

SCRIPTS = (
    *("unpack", "numbers", "statistics", "model", "state", "tables", "charts", "target", "pairs"),
    *("details", "controls", "watch", "start"),
)

MAX_BYTES = 3_000_000
"""Figures for which a page of this size has no room stand beside it."""

_REST = 100_000  # its own script and text
_TABLES = 400_000  # of the sections: these many bytes they get in any case


COMPARING, DRAWING, WRITING = "comparing", "drawing", "writing"
"""The parts of a command's work that make a page."""

_IMPORTS_S, _SECTION_S, _SECTION_RUN_S = 2.7, 0.02, 5e-5
_PAGE_S, _PAGE_RUN_S = 1.5, 1.5e-3
_FIGURE_S = 0.1
_PANEL_RUNS = 12  # of a situation, before it is known
_PANEL_S = {"time_against_target": 0.3, "time_to_accuracy": 0.3, "accuracy_over_time": 0.3}
_PANEL_S |= {"accuracy_over_steps": 0.2, "accuracy_over_bytes": 0.1}
"""Of the figures with a panel for each situation, or for each that is not equal to another."""
_CURVES_S = dict.fromkeys((name for name in _PANEL_S if name.startswith("accuracy_")), 0.013)
"""Of figures that look at the curves of all situations, for each."""
_SITUATION_S = {"overview": 5e-3, "time_against_target": 14e-3, "best_over_networks": 6e-3}
_SITUATION_S |= {"final_accuracy": 5e-3, "way_to_accuracy": 4e-3, "scaling": 2e-3}
_SITUATION_S |= {"time_to_accuracy": 2e-3}
"""Of sections that compare within each situation, for each."""
_PAGE_SITUATION_S = 0.01


def expected_s(num_runs: int, num_situations: int | None = None) -> dict[str, float]:
    """How long the parts of `make_page` may take, in their order; before the runs are known, there
    are so many situations as usual.
    """
    num = 1 + num_runs // _PANEL_RUNS if num_situations is None else num_situations
    return {
        COMPARING: _IMPORTS_S + sum(_section_s(module, num_runs, num) for module in SECTIONS),
        DRAWING: sum(_figure_s(name, num) for name in _PANEL_S),
        WRITING: _PAGE_S + _PAGE_RUN_S * num_runs + _PAGE_SITUATION_S * num,
    }


def _section_s(module: SectionModule, num_runs: int, num_situations: int) -> float:
    of_situation_s = _SITUATION_S.get(module.__name__.rpartition(".")[2], 0.0)
    return _SECTION_S + _SECTION_RUN_S * num_runs + of_situation_s * num_situations


def _figure_s(name: str, num_situations: int) -> float:
    of_panels_s = _PANEL_S.get(name, 0.0) * min(num_situations, MAX_PANELS)
    return _FIGURE_S + of_panels_s + _CURVES_S.get(name, 0.0) * num_situations


def make_page(
    data: ReportData,
    root: Path,
    out: Path,
    title: str,
    version: str = "",
    work: Work | None = None,
) -> str:
    """The page of runs at or below `root`. Tables and figures are written to `out`.

    `version` is of a page that is watched: it asks its server for a newer one. The page is a part
    of a command's `work`.
    """
    work = work or Work(clock=lambda: 0.0)  # by which nothing is said
    num = sum(1 for _ in comparable(data.table))
    for part, seconds in expected_s(len(data.runs), num).items():
        work.expect(part, seconds)
    sections = _compared(data, work, num)
    drawings = [name for section in sections.values() for name in section.drawings]
    sizes = [_figure_s(name, num) for name in drawings]
    work.expect(DRAWING, sum(sizes))
    work.begin(DRAWING, sizes)
    for section in sections.values():
        section.save(out, lambda name: work.done(_figure_s(name, num)))
    work.begin(WRITING)
    return _page(data, sections, root, out, title, version)


def _compared(data: ReportData, work: Work, num_situations: int) -> dict[str, Section]:
    """All sections, by their titles: the first part of the work."""
    sizes = [_section_s(module, len(data.runs), num_situations) for module in SECTIONS]
    sections: dict[str, Section] = {}
    work.begin(COMPARING, [_IMPORTS_S, *sizes])
    _ = data.styles  # imports all algorithms
    work.done(_IMPORTS_S)
    for module, size in zip(SECTIONS, sizes, strict=True):
        sections[module.TITLE] = module.section(data)
        work.done(size)
    return sections


def _page(
    data: ReportData,
    sections: Mapping[str, Section],
    root: Path,
    out: Path,
    title: str,
    version: str,
) -> str:
    packed, are_rounded = _packed(data, root)
    room = max(MAX_BYTES - sum(map(len, packed.values())) - _REST, _TABLES)
    shown, silent = fragments(sections, out, room)
    script = "\n".join(_read(f"script/{name}.js") for name in SCRIPTS)
    # MarkupSafe's escapes, for every value that is not `Markup`.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_read("page.html")).render(
        title=title,
        version=version,
        style=Markup(_read("page.css")),
        script=Markup(script),
        script_hash=_hash(script),
        fragments=shown,
        silent=silent,
        packed=packed,
        axes=list(AXES),
        digits=ROUNDED_DIGITS if are_rounded else None,
        num_runs=len(data.runs),
        has_pairs=data.table.label.nunique() > 1,
    )


def _packed(data: ReportData, root: Path) -> tuple[dict[str, str], bool]:
    """All that the script unpacks, by its name, and whether the curves are rounded."""
    curves = Curves.of(data)
    explored = _explored(data, curves, root)
    module, styles = data_tables()
    numbers = curves.numbers()
    packed = {
        "vega": vega(),
        "data-tables": module,
        "data-tables-style": styles,
        "runs": packed_json(explored),
        **{f"numbers-{name}": packed_numbers(own) for name, own in numbers.items()},
    }
    if sum(map(len, packed.values())) <= MAX_BYTES - _REST - _TABLES:
        return packed, False
    targets = [target for problem in explored["problems"] for target in problem["targets"]]
    packed["numbers-time_s"] = packed_numbers(rounded(numbers["time_s"]))
    packed["numbers-score"] = packed_numbers(rounded(numbers["score"], targets))
    return packed, True


def _read(name: str) -> str:
    return (resources.files("experiments.report.page") / name).read_text()


def _hash(script: str) -> str:
    """By which the page's policy knows its own script, and refuses any other."""
    return b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _explored(data: ReportData, curves: Curves, root: Path) -> dict[str, Any]:
    """All that the script shows."""
    names = sorted(set(data.runs["name"]))
    settings = settings_of_runs(data)
    arrays: list[list[Any]] = []
    explored = {
        "algorithms": [{"name": n, "color": style_of(algorithm_of(n)).color} for n in names],
        "table": run_table(data, root),
        "setting": settings,
        "settings": [_setting(row) for row in data.table.to_dict("records")],
        "curves": curves.described(),
        "rules": rules(range(1, max(Counter(settings).values()) + 1)),  # some may not have ended
        "at_work": AT_WORK,
        "unread": np.flatnonzero(data.runs.is_unread).tolist(),
        **situations(data, curves, settings),
    }
    return shared(explored, arrays, {}) | {"arrays": arrays}


def _setting(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "label": row["label"],
        "is_timed": not row["shared_gpu"],
    }
