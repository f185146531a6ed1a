"""The libraries that the page runs: Vega for charts, DataTables for tables.

Both come with Python packages, vl-convert and itables, so that nothing is fetched.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import vl_convert

from experiments.report.page.packing import packed


@cache
def vega() -> str:
    """Vega-Embed, Vega-Lite and Vega, which put `vegaEmbed` into the window. It takes seconds."""
    return packed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())


@cache
def data_tables() -> tuple[str, str]:
    """The module of DataTables, whose default export it is, and its styles."""
    spec = find_spec("itables")
    assert spec is not None and spec.origin is not None, "the extra report brings itables"
    folder = Path(spec.origin).parent / "html"
    return packed((folder / "dt_bundle.js").read_bytes()), packed(
        (folder / "dt_bundle.css").read_bytes()
    )
