"""The notebook of a report: a template and every section, to be executed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.client import KernelClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from traitlets.config import Config

import experiments
from experiments.report.sections import SECTIONS, SectionModule
from host.errors import Failure

TIMEOUT_S = 600
"""The longest that a cell may take."""

_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


class ReportError(Failure):
    """A report's notebook did not run to its end; the message says where, with the traceback of a
    cell.
    """


def make_notebook(runs: str, title: str) -> NotebookNode:
    """The notebook, not executed. `runs` is the folder as seen from that of the notebook."""
    text = (resources.files("experiments.report") / "templates/notebook.py").read_text()
    cells = [_cell(kind.strip(), source.strip()) for kind, source in _parts(text)]
    cells = _with_sections(cells)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # else random: a report would never be the same twice
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = f"RUNS = {runs!r}"
        cell.source = cell.source.replace("$title", title)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def num_cells(notebook: NotebookNode) -> int:
    """How many of its cells are code."""
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def execute(notebook: NotebookNode, folder: Path, done: Callable[[], None] = lambda: None) -> None:
    """Run all cells in `folder`, in place; `done` hears of each of code. Raises `ReportError`."""
    with TemporaryDirectory() as sockets:
        # Not over TCP, whose ports everybody on the machine could reach.
        transport = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        transport |= {"connection_file": f"{sockets}/kernel.json"}
        client = _Client(
            notebook,
            timeout=TIMEOUT_S,
            on_cell_executed=lambda **_: done(),
            resources={"metadata": {"path": str(folder)}},
            config=Config({"KernelManager": transport}),
        )
        try:
            client.execute(env=_environment())
        except (CellExecutionError, CellTimeoutError, RuntimeError) as error:
            raise ReportError(str(error)) from error


class _Client(NotebookClient):
    """Leaves Ctrl-C and SIGTERM to the command, where nbclient would end the kernel and go on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    async def async_start_new_kernel(self, **options: Any) -> None:
        """As nbclient's, which by now has taken the signals."""
        loop = asyncio.get_running_loop()
        for number, handler in self._handlers.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)
        await super().async_start_new_kernel(**options)

    async def async_start_new_kernel_client(self) -> KernelClient:
        """As nbclient's; what is connected needs its files no more, which a kill would leave."""
        client = await super().async_start_new_kernel_client()
        for file in Path(self.config["KernelManager"]["ip"]).parent.iterdir():
            file.unlink()
        return client

    async def _async_cleanup_kernel(self) -> None:
        """As nbclient's, also where a kernel has died before it answered."""
        if self.km is not None:
            await super()._async_cleanup_kernel()


def save(notebook: NotebookNode, folder: Path) -> Path:
    """Write report.ipynb."""
    file = folder / "report.ipynb"
    nbformat.write(notebook, file)
    return file


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the source of each cell; what stands before the first is no cell."""
    pieces = _CELL.split(text)[1:]
    yield from zip(pieces[::2], pieces[1::2], strict=True)


def _cell(kind: str, source: str) -> NotebookNode:
    if kind == "[markdown]":
        return nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", source, flags=re.MULTILINE))
    return nbformat.v4.new_code_cell(source, metadata={"tags": [kind]} if kind else {})


def _with_sections(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Every section's heading and code after `cells`; one without a heading joins the last cell."""
    for module in SECTIONS:
        code = _code(module)
        if module.TITLE:
            heading = nbformat.v4.new_markdown_cell(f"## {module.TITLE}")
            cells = [*cells, heading, nbformat.v4.new_code_cell(code)]
        else:
            cells[-1].source += f"\n\n{code}"
    return cells


def _code(module: SectionModule) -> str:
    room, _, name = module.__name__.rpartition(".")
    lines = [
        "from experiments.report.display import show",
        f"from {room} import {name}",
        "",
        f"show({name}.section(data))",
    ]
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    """The kernel finds this very package, wherever it starts."""
    home = str(Path(experiments.__file__).parents[1])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([home, *([path] if path else [])])}
