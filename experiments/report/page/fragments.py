"""The sections of a report as the page shows them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from experiments.report.section import MAX_ROWS, Section

SUMMARY = "Summary"

_COLUMN_PIXELS = 1000
"""More than the width of a figure of one column, and less than that of two."""

MIN_ROWS = 50
"""Of each table, whatever room there is."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure by its name; `uri` is "" where the page has no room for it."""

    name: str
    text: str
    uri: str
    width: int
    height: int

    @property
    def is_wide(self) -> bool:
        """Whether it has two columns."""
        return self.width > _COLUMN_PIXELS


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table by its name, as HTML that escapes what records contain."""

    name: str
    caption: str
    html: Markup


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A section with something to show. `anchor` is what a link names."""

    title: str
    anchor: str
    finding: str
    notes: tuple[str, ...] = ()
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def fragments(
    sections: Mapping[str, Section], out: Path, room: int
) -> tuple[list[Fragment], dict[str, str]]:
    """The sections, by their titles, that show anything; of the others what they find.

    Args:
        sections: as saved in `out`, which has their figures.
        out: a folder.
        room: the bytes that tables and figures may take. Figures beyond are named alone.
    """
    tables = _tables(sections, MAX_ROWS)
    taken = _bytes_of(tables)
    if taken > room:
        longest = max(table.num_rows for own in sections.values() for table in own.tables.values())
        fitting = min(longest, MAX_ROWS) * room / taken
        tables = _tables(sections, max(int(fitting), MIN_ROWS))
        taken = _bytes_of(tables)
    left = room - taken
    shown, silent = [], {}
    for title, section in sections.items():
        if not (section.tables or section.figures) and title:
            silent[title] = " ".join([section.finding, *section.notes])
            continue
        figures = []
        for name in section.figures:
            figure = _figure(name, section.finding, out, left)
            left -= len(figure.uri)
            figures.append(figure)
        shown.append(
            Fragment(
                title=title or SUMMARY,
                anchor=anchor(title or SUMMARY),
                finding=section.finding,
                notes=tuple(section.notes),
                figures=figures,
                tables=tables[title],
            )
        )
    return shown, silent


def anchor(title: str) -> str:
    """Such as "time-to-accuracy"."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _tables(sections: Mapping[str, Section], max_rows: int) -> dict[str, list[Table]]:
    """The tables of each section."""
    return {
        title: [
            Table(name=name, caption=table.caption, html=Markup(table.html(max_rows)))  # it escapes
            for name, table in section.tables.items()
        ]
        for title, section in sections.items()
    }


def _bytes_of(tables: Mapping[str, list[Table]]) -> int:
    return sum(len(table.html) for own in tables.values() for table in own)


def _figure(name: str, finding: str, out: Path, room: int) -> Figure:
    """As WebP without loss, which takes two thirds of the PNG's bytes."""
    buffer = BytesIO()
    with Image.open(out / f"{name}.png") as image:
        width, height = image.size
        image.convert("RGB").save(buffer, "WEBP", lossless=True, method=3)
    uri = f"data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}"
    return Figure(
        name=name,
        text=f"{name.replace('_', ' ')}: {finding}",
        uri=uri if len(uri) <= room else "",
        width=width,
        height=height,
    )
