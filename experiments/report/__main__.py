"""Makes tables, plots, a page to explore and a notebook from a folder of runs.

python -m experiments.report results/runs [--out results/reports/tradeoff]
python -m experiments.report results/runs --execute         the notebook with all it shows, too
python -m experiments.report results/runs --tables          the tables alone, as Markdown
"""

# What makes a report takes seconds to import. It is imported once the command line was looked at.

import argparse
import ast
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.runs.load import READING, check_runs, num_folders
from host import commands
from host.command_line.parser import Parser
from host.errors import UserError
from host.output import check_folder, writing
from host.remaining import Work

EXECUTING = "executing"
"""The part of the work that runs the notebook's cells, which do all again."""

IMPORTING, IMPORTING_S = "importing", 1.5
"""Its first part."""

BEGIN_S, RUN_S = 0.05, 1e-3
"""What reading takes: to begin, and a run."""

EXTRA = ("itables", "jinja2", "vl_convert", "nbformat", "nbclient", "ipykernel")
"""What the page and the notebook need: the extra "report"."""


def report(path: str | Path, out: str | Path, *, execute: bool = False) -> list[Path]:
    """Report the runs at or below `path` in the folder `out`; returns the page and the notebook,
    which is executed on request.

    Raises:
        UserError: there is no folder, `out` cannot be written, or the extra "report" is missing.
        ReportError: the notebook has failed.
    """
    check_extra()
    check_runs(path)
    work = Work({IMPORTING: IMPORTING_S})
    work.begin(IMPORTING)
    with commands.importing():
        import pyarrow.parquet  # noqa: F401  # which reading runs would import

        from experiments.report import notebook as notebooks
        from experiments.report.data import ReportData
        from experiments.report.page.build import expected_s, make_page
    path, out = Path(path), Path(out)
    num_runs = num_folders(path)
    parts = {READING: BEGIN_S + RUN_S * num_runs} | expected_s(num_runs)
    for part, seconds in (parts | ({EXECUTING: sum(parts.values())} if execute else {})).items():
        work.expect(part, seconds)
    is_new = not out.exists()
    check_folder(out)
    try:
        data = ReportData.load(path, work)
    except UserError:
        if is_new:
            out.rmdir()
        raise
    title, page = out.resolve().name, out / "report.html"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        page.write_text(make_page(data, path, out, title, work=work))
    notebook = notebooks.make_notebook(os.path.relpath(path, out), title=title)
    if execute:
        work.begin(EXECUTING, [1.0] * notebooks.num_cells(notebook))
        notebooks.execute(notebook, out, work.done)
    return [page, notebooks.save(notebook, out)]


def main() -> int:
    """The command line."""
    commands.raise_at_sigterm()
    parser = Parser(
        prog=commands.program("experiments.report"),
        description=commands.as_called(__doc__).split("\n")[0],
        epilog=_sections(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", metavar="DIR", help="a folder of runs")
    parser.add_argument("--out", help="the folder to write; by default results/reports/DIR's name")
    parser.add_argument(
        "--execute", action="store_true", help="run the notebook, so that it shows all it says"
    )
    parser.add_argument(
        "--tables", nargs="*", metavar="NAME", help="the tables alone, as Markdown: these or all"
    )
    arguments = parser.parse_args()
    _check(arguments)
    name = Path(arguments.dir).resolve().name
    out = Path("results/reports", name) if arguments.out is None else Path(arguments.out)
    if arguments.tables is not None:
        return _tables(arguments.dir, arguments.tables, out)
    for file in report(arguments.dir, out, execute=arguments.execute):
        print(file)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for a name of no letters, and for options that do not go together."""
    for name, value in (("DIR", arguments.dir), ("--out", arguments.out)):
        if value == "":
            raise UserError(f"{name} is empty: name a folder, such as . for this one")
    if arguments.execute and arguments.tables is not None:
        raise UserError(
            "--execute runs the notebook, and --tables makes none: leave one of them out"
        )


def _tables(path: str, names: Sequence[str], out: Path) -> int:
    check_runs(path)
    with commands.importing():
        import pyarrow.parquet  # noqa: F401  # which reading runs would import

        from experiments.report import tables
    found = tables.tables(path, names)
    tables.save(found, out)
    print("\n".join(str(out / name) for name in found))
    return 0


def _sections() -> str:
    """Every section of the page, with what it tells, which is read without importing any."""
    folder = Path(__file__).parent / "sections"
    names = _assigned(ast.parse((folder / "__init__.py").read_text()), "SECTIONS")
    lines = []
    for name in [node.id for node in ast.walk(names) if isinstance(node, ast.Name)]:
        module = ast.parse((folder / f"{name}.py").read_text())
        title = ast.literal_eval(_assigned(module, "TITLE")) or "What was run"
        lines.append(f"  {title}: {(ast.get_docstring(module) or '').splitlines()[0]}")
    return "\n".join(["sections:", *lines])


def _assigned(module: ast.Module, name: str) -> ast.expr:
    """What a module assigns to a name of its own."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if [target.id for target in targets if isinstance(target, ast.Name)] == [name]:
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return node.value
    raise AssertionError(f"no {name} in the module")


def check_extra() -> None:
    """Raises `UserError` where a package of the extra "report" is missing."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise UserError(f"A report needs {', '.join(missing)}: pip install 'relaxlab[report]'.")


if __name__ == "__main__":
    commands.run(main)
