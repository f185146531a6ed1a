"""One table and one plot for any set of runs.

python -m experiments.compare results/runs [--out figures]
"""

import sys
from pathlib import Path

from rich.text import Text

from experiments.report.cells import remarks, render, repeated, unlike
from experiments.report.data import ReportData
from experiments.report.figures.files import save_plot
from experiments.report.figures.plots import accuracy_plot
from experiments.runs.load import load_runs_and_metrics
from host.command_line.console import Console
from host.errors import UserError
from host.output import check_folder


def compare(path: str | Path, out: str | Path | None = None) -> None:
    """Prints the table of all runs at or below `path`; writes accuracy.png and .svg to `out`.

    Raises:
        UserError: there is no such folder, it holds no run, or `out` cannot be written.
    """
    folder = Path(path if out is None else out)
    if out is not None or folder.is_dir():
        check_folder(folder)
    runs, metrics = load_runs_and_metrics(path)
    problems = [*runs.attrs["apart"], *metrics.attrs["problems"]]
    if runs.empty:
        raise UserError(" ".join([f"There is no run in {path}.", *problems]))
    data = ReportData.of(runs, metrics)
    console = Console(width=None if sys.stdout.isatty() else 250)
    console.print(render(data.table, data.runs))
    figure = accuracy_plot(data)
    plots = save_plot(figure, folder) if figure else []
    ending = [*filter(None, [data.drawn().left_out]), *(f"Plot: {file}" for file in plots)] or [
        "No plot: no run was evaluated."
    ]
    weaknesses = [*repeated(data.runs), *unlike(data.runs)]
    for line in [*remarks(data.runs), *weaknesses, *problems, *ending]:
        console.print(Text(line), soft_wrap=True)
