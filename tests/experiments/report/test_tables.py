import math
import shlex

import pandas as pd
import pytest

from experiments.report import tables
from experiments.report.__main__ import main
from experiments.report.section import PageTable
from host.errors import UserError
from tests.experiments.recorded import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for algo in ("allreduce", "bytegrad"):
        write_run(root / algo, algo)
    return root


def report(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["report", *map(str, arguments)])
    return main()


def test_they_are_those_of_the_sections(runs):
    found = tables.tables(runs)
    assert {"time_to_accuracy.md", "way_to_accuracy.md", "bytes.md"} <= set(found)
    assert list(tables.tables(runs, ["bytes"])) == ["bytes.md"]
    with pytest.raises(UserError, match="has no table 'byte': choose time_against_target, "):
        tables.tables(runs, ["byte"])


def test_the_chosen_ones_are_written(runs, tmp_path, monkeypatch, capsys):
    of = (runs, "--out", tmp_path / "out", "--tables", "bytes", "time_to_accuracy")
    assert report(monkeypatch, *of) == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["bytes.md", "time_to_accuracy.md"]
    assert sorted(capsys.readouterr().out.split()) == list(map(str, files))
    assert files[0].read_text() == tables.tables(runs)["bytes.md"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("runs --tables --execute", "--execute runs the notebook, and --tables makes none"),
        ("'' --tables", "DIR is empty: name a folder"),
        ("runs --out ''", "--out is empty: name a folder"),
    ],
)
def test_words_that_would_mean_something_else_are_refused(words, said, monkeypatch):
    with pytest.raises(UserError, match=said):
        report(monkeypatch, *shlex.split(words))


def test_what_a_spreadsheet_would_compute_is_text(tmp_path):
    names = ["=1+1", "@SUM(A1)", "+1|x", "-"]
    numbers = pd.DataFrame({"=name": names, "low": [-1.5, 1.0, math.nan, 2.0], "n": [1, 2, 3, 4]})
    PageTable(caption="", cells={"name": names}, numbers=numbers).save(tmp_path, "names")
    lines = (tmp_path / "names.csv").read_text().splitlines()
    assert lines == ["'=name,low,n", "'=1+1,-1.5,1", "'@SUM(A1),1.0,2", "'+1|x,,3", "-,2.0,4"]
