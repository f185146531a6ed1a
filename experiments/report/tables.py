"""The tables of a report alone, as Markdown: what git keeps of a study's pages.

python -m experiments.report results/runs/tradeoff --tables --out results/tradeoff
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.report.data import ReportData
from experiments.report.sections import SECTIONS
from host.errors import UserError
from host.output import writing


def tables(path: str | Path, names: Sequence[str] = ()) -> dict[str, str]:
    """The tables of the runs at or below `path`, as Markdown, by the names of their files.

    Args:
        names: of the tables, without ".md"; all where there is none.

    Raises:
        UserError: there is no run, or no table of such a name.
    """
    data = ReportData.load(path)
    found = {
        name: table.markdown()
        for module in SECTIONS
        for name, table in module.section(data).tables.items()
    }
    for name in names:
        if name not in found:
            raise UserError(f"{path} has no table {name!r}: choose {', '.join(found)}")
    return {f"{name}.md": text for name, text in found.items() if not names or name in names}


def save(texts: Mapping[str, str], out: Path) -> None:
    """Write the files `texts` to the folder `out`. Raises `UserError` where that cannot be."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text)
