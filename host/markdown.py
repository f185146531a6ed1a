"""Tables of Markdown pages."""

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A pipe table without a newline at its end.

    Args:
        headers: of the columns; "|" in a header or a cell is escaped.
        rows: of cells, one for each column; lines of one become one line.
        align: a letter for each column, "l" or "r"; by default all are to the left.

    Raises:
        ValueError: a row or `align` has another number of columns than the headers.
    """
    align = align or "l" * len(headers)
    rules = [{"l": "---", "r": "---:"}[letter] for letter in align]
    lines = [_line(headers), f"| {' | '.join(rules)} |"]
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"{len(headers)} columns need as many cells, got {list(row)}")
        lines.append(_line(row))
    if len(align) != len(headers):
        raise ValueError(f"{len(headers)} columns need as many letters, got align={align!r}")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    escaped = [" ".join(cell.splitlines()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"
