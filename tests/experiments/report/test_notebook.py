import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from experiments.report import __main__ as command
from experiments.report import notebook as notebooks
from experiments.report.notebook import make_notebook
from experiments.report.page import build
from experiments.report.section import MAX_ROWS, PageTable
from experiments.report.sections import SECTIONS
from host.errors import UserError
from tests import app
from tests.experiments.recorded import write_run
from tests.experiments.report.reported import reported as made_report

HEADINGS = [module.TITLE for module in SECTIONS if module.TITLE]


def run_command(*arguments):
    return app.run(*arguments, module="experiments.report.__main__")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    return made_report(tmp_path_factory)


def test_help_names_every_section():
    done = run_command("--help")
    assert done.returncode == 0 and all(f"  {heading}: " in done.stdout for heading in HEADINGS)


def test_tables_and_figures_are_written_in_all_formats(reported):
    files = {file.name for file in (reported / "reports" / "tradeoff").iterdir()}
    tables = {
        *("time_to_accuracy", "way_to_accuracy", "final_accuracy", "bytes", "incomplete"),
        "exposed_communication",
    }
    assert {f"{name}.{kind}" for name in tables for kind in ("csv", "md", "tex")} <= files
    figures = {
        *("time_to_accuracy", "accuracy_over_time", "accuracy_over_steps", "accuracy_over_bytes"),
        *("best_over_networks", "performance_profile"),
    }
    assert {f"{name}.{kind}" for name in figures for kind in ("png", "svg")} <= files
    assert not [name for name in files if name.endswith(".tmp")]


@pytest.mark.slow
def test_the_notebook_can_be_run_by_its_reader(reported):
    """In its own folder, as Jupyter does; it names the runs from there."""
    folder = reported / "reports" / "tradeoff"
    notebook = nbformat.read(folder / "report.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert any(cell.source == "RUNS = '../../runs'" for cell in notebook.cells)
    assert str(reported) not in json.dumps([cell.source for cell in notebook.cells])
    assert _texts(notebook) == []
    table = (folder / "time_to_accuracy.csv").read_text()
    (folder / "time_to_accuracy.csv").unlink()
    notebooks.execute(notebook, folder)
    assert any("Of 4 situations, first is" in text for text in _texts(notebook))
    assert (folder / "time_to_accuracy.csv").read_text() == table


def _texts(notebook):
    """The Markdown that its cells show."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data["text/markdown"] for output in outputs if "text/markdown" in output.data]


def test_a_notebook_is_executed_on_request_alone(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "run")
    executed = []
    monkeypatch.setattr(build, "make_page", lambda *_, **__: "a page")
    monkeypatch.setattr(
        notebooks, "execute", lambda notebook, folder, done: executed.append(folder)
    )
    for is_asked in (False, True):
        command.report(tmp_path / "runs", tmp_path / "out", execute=is_asked)
        assert executed == [tmp_path / "out"] * is_asked


def test_a_notebook_is_the_same_twice():
    assert make_notebook("runs", "a title") == make_notebook("runs", "a title")
    assert make_notebook("runs", "a title").cells[0].source.startswith("# a title\n")


@pytest.mark.parametrize("name", ["nothing", "misspelt", "file"])
def test_a_users_mistake_is_one_sentence(tmp_path, name):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").touch()
    write_run(tmp_path / "runs" / "run")
    place = [tmp_path / "runs", "--out", tmp_path / "file"] if name == "file" else [tmp_path / name]
    done = run_command(*place, *(["--out", tmp_path / "out"] if name != "file" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and str(tmp_path / name) in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_its_extra_a_report_says_what_to_install(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    monkeypatch.setattr(command, "EXTRA", ("json", "a_package_that_is_not_there"))
    with pytest.raises(UserError, match=r"a_package_that_is_not_there: pip install 'relaxlab\[rep"):
        command.report(tmp_path, tmp_path / "out")


def table(**cells):
    return PageTable(caption="A caption.", cells=cells, numbers=pd.DataFrame(cells))


def test_names_are_no_markup_in_any_format():
    page = table(algorithm=["a_b|<i>&50%"], runs=["3"])
    assert "| a_b\\|<i>&50% | 3 |" in page.markdown()
    assert r"a\_b|<i>\&50\% & 3" in page.latex()
    assert "a_b|&lt;i&gt;&amp;50%" in page.html()


def test_a_page_of_the_same_table_is_the_same_to_the_letter():
    assert table(algorithm=["a"]).html() == table(algorithm=["a"]).html()
    assert table(algorithm=["a"]).html() != table(algorithm=["b"]).html()


def test_long_tables_are_shown_in_part_and_say_so(tmp_path):
    page = table(algorithm=[str(i) for i in range(MAX_ROWS + 1)])
    page.save(tmp_path, "long")
    assert f"The first {MAX_ROWS} of {MAX_ROWS + 1} rows." in page.html()
    emphasized = replace(page, emphasized=[0, 4, MAX_ROWS])
    assert emphasized.html(5).count(" first c") == 2 and "The first 5 of" in emphasized.html(5)
    assert page.markdown().count("\n| ") == MAX_ROWS + 2  # a header and a rule
    assert len(pd.read_csv(tmp_path / "long.csv")) == MAX_ROWS + 1


@pytest.mark.slow
def test_a_hundred_runs_are_reported_within_two_gigabytes(tmp_path):
    algos = ("torch_ddp", "torch_ddp_bf16", "allreduce", "bytegrad", "local_sgd")
    runs = tmp_path / "runs"
    for algo, seed in product(algos, range(5)):
        write_run(runs / f"{algo}_1_{seed}", algo, "wan", seed, workers=1)
        for workers in range(2, 5):
            copy_run(runs / f"{algo}_1_{seed}", workers)
    command = [sys.executable, "-m", "experiments.report", tmp_path / "runs"]
    done = subprocess.run([*command, "--out", tmp_path / "out"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_maxrss < 2_000_000  # the largest child of all tests so far
    assert "100 runs" in (tmp_path / "out" / "report.html").read_text()


def copy_run(source: Path, workers: int) -> None:
    """The same run of another number of workers, sooner than `write_run` makes one."""
    algo, _, seed = source.name.rsplit("_", 2)
    folder = source.with_name(f"{algo}_{workers}_{seed}")
    folder.mkdir()
    for file in ("metrics.parquet", "environment.json"):
        os.link(source / file, folder / file)
    for file, words in (("summary.json", '"workers": {},'), ("config.yaml", "workers: {}\n")):
        text = (source / file).read_text()
        assert text.count(words.format(1)) == 1
        (folder / file).write_text(text.replace(words.format(1), words.format(workers)))
