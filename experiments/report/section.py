"""A section of a report: a finding, tables and figures, and the files they become."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.plan.identity import identity
from experiments.report.cells import WORDS, Columns
from experiments.report.figures.files import save_plot
from experiments.report.figures.styles import algorithm_of, style_of
from host import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler

MAX_ROWS = 500
"""The most rows of a table that a page shows; the CSV has all rows."""


_OF_NO_USE = re.compile(r"^ +(?=<)|(?<=<td class=\")data row\d+ col\d+ ", re.MULTILINE)
"""Of the HTML that pandas writes, a third: what is escaped has no such brackets or quotes."""

_FORMULA = re.compile(r"[=+@\t\r-].")


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table as people read it, `cells`, and its `numbers`, for programs.

    `emphasized` rows, by their positions, are set in bold type.
    """

    caption: str
    cells: Columns
    numbers: pd.DataFrame
    emphasized: Sequence[int] = ()

    @property
    def num_rows(self) -> int:
        """Of `cells`; `numbers` may have several for each."""
        return max(map(len, self.cells.values()), default=0)

    def save(self, out: Path, name: str) -> None:
        """Write `name`.csv, .md and .tex."""
        _without_formulas(self.numbers).to_csv(out / f"{name}.csv", index=False)
        (out / f"{name}.md").write_text(self.markdown())
        (out / f"{name}.tex").write_text(self.latex())

    def markdown(self) -> str:
        """A pipe table below its caption."""
        align = "".join("l" if header in WORDS else "r" for header in self.cells)
        rows = self._shown().to_numpy().tolist()
        return f"{self._full_caption()}\n\n{markdown.table(list(self.cells), rows, align)}\n"

    def latex(self) -> str:
        """A tabular with rules of booktabs, below its caption as a comment."""
        columns = "".join("l" if header in WORDS else "r" for header in self.cells)
        style = self._styler("latex").hide(axis="index")
        return f"% {self._full_caption()}\n" + style.to_latex(hrules=True, column_format=columns)

    def html(self, max_rows: int = MAX_ROWS) -> str:
        """For a page or a notebook."""
        shown = self._shown(max_rows)
        kinds = {h: "number" if h not in WORDS and _has_number(shown[h]) else "word" for h in shown}
        classes = pd.DataFrame([kinds] * len(shown), columns=shown.columns)
        classes.loc[[row for row in self.emphasized if row < len(shown)]] += " first"
        swatches = []
        if "algorithm" in shown:
            colors = [style_of(algorithm_of(label)).color for label in shown["algorithm"]]
            classes["algorithm"] += [f" c{color[1:]}" for color in colors]
            swatches = [_swatch(color) for color in sorted(set(colors))]
        style = self._styler("html", max_rows).hide(axis="index").set_td_classes(classes)
        caption = html.escape(self._full_caption(max_rows))
        style = style.set_caption(caption).set_table_styles(_TABLE_STYLES + swatches)
        text = self.markdown()  # by which pages of the same runs are equal
        made = style.to_html(table_uuid=identity(text), table_attributes='class="study"')
        return _OF_NO_USE.sub("", made)

    def _styler(self, escape: str, max_rows: int = MAX_ROWS) -> Styler:
        style = self._shown(max_rows).style
        style.format(escape=escape).format_index(escape=escape, axis=1)
        style.cell_ids = False
        return style

    def _shown(self, max_rows: int = MAX_ROWS) -> pd.DataFrame:
        return pd.DataFrame(self.cells, dtype="object").head(max_rows)

    def _full_caption(self, max_rows: int = MAX_ROWS) -> str:
        num_rows = self.num_rows
        left_out = f" The first {max_rows} of {num_rows} rows." if num_rows > max_rows else ""
        return self.caption + left_out


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the data say on one subject: a sentence, further `notes`, tables and figures by name.

    `drawings` draw the figures, None where there is nothing to draw: that takes most of the time of
    a report, and its tables do without.
    """

    finding: str
    notes: Sequence[str] = ()
    tables: Mapping[str, PageTable] = field(default_factory=dict)
    drawings: Mapping[str, Callable[[], Figure | None]] = field(default_factory=dict)

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """All that there is to draw, drawn once."""
        drawn = {name: draw() for name, draw in self.drawings.items()}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def save(self, out: Path, drawn: Callable[[str], None] = lambda name: None) -> None:
        """Write every table as .csv, .md and .tex, every figure as .png and .svg. `drawn` is told
        each of the drawings that is done.
        """
        for name, table in self.tables.items():
            table.save(out, name)
        for name in self.drawings:
            if name in self.figures:
                save_plot(self.figures[name], out, name)
            drawn(name)


def _without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """A spreadsheet computes a text that begins like a formula: what records contain has a ' before
    it there.
    """
    columns = {
        str(name): [_as_text(cell) for cell in cells]
        for name, cells in table.items()
        if any(_is_formula(cell) for cell in cells)
    }
    return table.assign(**columns).rename(columns=_as_text)


def _is_formula(cell: object) -> bool:
    return isinstance(cell, str) and _FORMULA.match(cell) is not None


def _as_text(cell: Any) -> Any:
    return f"'{cell}" if _is_formula(cell) else cell


def _has_number(cells: Iterable[object]) -> bool:
    """Whether one of them begins like a number."""
    return any(re.match(r"[-+(]?\d", str(cell)) for cell in cells)


def _swatch(color: str) -> Any:
    """An edge in the colour that an algorithm has in the figures."""
    props = f"border-left: 0.5rem solid {color}"
    return {"selector": f"td.c{color[1:]}", "props": props}


_TABLE_STYLES: Any = [
    {"selector": "td.number", "props": "text-align: right"},
    {"selector": "td.word, th.col_heading", "props": "text-align: left"},
    {"selector": "td.first", "props": "font-weight: bold"},
    {"selector": "caption", "props": "caption-side: top; text-align: left"},
]
