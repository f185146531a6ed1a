"""Tables of pages that people have written: columns of made ones, each below a line that names it.

    <!-- table: reference/times_over_networks.md -->

    | algorithm | wan |
    | --- | ---: |

The path starts at the page's folder. A quote has all rows of that file's table, in its order, and
the columns that the page's own header names; "wan" stands for "wan, 100 Mbit/s" too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_QUOTE = re.compile(r"(<!-- table: (\S+) -->\n\n)(\|.*\n)(?:\|.*\n)*")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def requoted(page: Path, made: Mapping[str, bytes], root: Path) -> bytes:
    """The text of `page` with all its quotes as they are in `made`, the files by their paths below
    `root`; nothing where it quotes none.

    Raises:
        ValueError: it names a file that is not in `made`, or no table, or a column that is not
            there.
    """

    def replace(match: re.Match[str]) -> str:
        head, name, header = match.groups()
        path = Path(os.path.normpath(page.parent / name)).relative_to(root)
        found = _TABLE.search(made.get(str(path), b"").decode())
        if found is None:
            raise ValueError(f"{page} quotes {path}, which is no table")
        columns, *rows = map(_cells, found.group().splitlines())
        try:
            chosen = [_column(header, columns) for header in _cells(header)]
        except ValueError as error:
            raise ValueError(f"{page} quotes {path}, which has {error}") from error
        return head + header + "".join(_line([row[k] for k in chosen]) for row in rows)

    text, num_quotes = _QUOTE.subn(replace, page.read_text())
    return text.encode() if num_quotes else b""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _column(header: str, columns: list[str]) -> int:
    if columns.count(header) == 1:
        return columns.index(header)
    found = [k for k, column in enumerate(columns) if column.split(",")[0] == header]
    if len(found) != 1:
        raise ValueError(f"{len(found)} columns {header!r}")
    return found[0]
