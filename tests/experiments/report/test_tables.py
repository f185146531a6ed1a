import pytest

from experiments.report import tables
from experiments.report.__main__ import main
from experiments.runs.actions import Unpack
from host.errors import Failure, UserError
from tests.experiments.recorded import write_run
from tests.paths import ROOT

KEPT = ROOT / "results/reference"


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
    with pytest.raises(UserError, match="has no table 'byte': choose time_to_accuracy, "):
        tables.tables(runs, ["byte"])


def test_what_was_written_is_found_again_and_a_change_is_named(runs, tmp_path, monkeypatch, capsys):
    of = (runs, "--out", tmp_path / "out", "--tables", "bytes", "time_to_accuracy")
    assert report(monkeypatch, *of) == 0
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert files == ["bytes.md", "time_to_accuracy.md"]
    capsys.readouterr()
    assert report(monkeypatch, *of, "--check") == 0
    assert capsys.readouterr().out == f"{tmp_path}/out: 2 tables as the runs say\n"
    table = tmp_path / "out/bytes.md"
    table.write_text(table.read_text().replace("0", "1", 1))
    with pytest.raises(Failure, match=r"out is not what the runs say: bytes\.md"):
        report(monkeypatch, *of, "--check")
    table.unlink()
    with pytest.raises(Failure, match=r"bytes\.md"):
        report(monkeypatch, *of, "--check")


def test_a_table_that_no_run_tells_of_is_named(runs, tmp_path, monkeypatch):
    of = (runs, "--out", tmp_path, "--tables", "bytes")
    report(monkeypatch, *of)
    (tmp_path / "others.md").write_text("")
    with pytest.raises(Failure, match=r"tables that the runs do not: others\.md"):
        report(monkeypatch, *of, "--check")


def test_checking_goes_with_tables(runs, monkeypatch):
    with pytest.raises(SystemExit) as ended:
        report(monkeypatch, runs, "--check")
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("archive", "page"), [("runs_real", "reference_real"), ("runs_simulated", "reference_movies")]
)
def test_the_tables_that_git_keeps_are_what_its_records_say(tmp_path, archive, page):
    """Of two pages; `python -m experiments.study reference check` compares all."""
    Unpack(archive=str(KEPT / f"{archive}.tar.xz"), to=str(tmp_path)).run()
    found = tables.tables(tmp_path / page)
    assert {"time_to_accuracy.md", "times_over_networks.md"} <= set(found)
    tables.check(found, KEPT / page)
    tables.check_complete(found, KEPT / page)
