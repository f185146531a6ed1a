"""A section in a notebook: shown, and written beside it."""

from __future__ import annotations

from pathlib import Path

from IPython.display import HTML, Image, Markdown, display

from experiments.report.section import Section


def show(section: Section, out: str | Path = ".") -> None:
    """Display the finding, the figures and the tables, and save what can be saved to `out`."""
    out = Path(out)
    section.save(out)
    display(Markdown(f"**{_plain(section.finding)}**"))
    for note in section.notes:
        display(Markdown(_plain(note)))
    for name in section.figures:
        said = f"{name.replace('_', ' ')}: {section.finding}"
        display(Image(filename=out / f"{name}.png", alt=said))
    for table in section.tables.values():
        display(HTML(table.html()))


def _plain(text: str) -> str:
    """Names with underscores and stars, and paths, are no markup."""
    for mark in "\\`*_[]<>#|$":
        text = text.replace(mark, "\\" + mark)
    return text
