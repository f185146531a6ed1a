"""Commands that print what they find, run to their end on something small."""

from types import SimpleNamespace

import pytest

from experiments.commands import convergence, gradients
from experiments.commands.benches import bench, bench_algorithms, bench_simulation
from experiments.commands.checks import published
from experiments.predict.predict import StepPrediction
from experiments.predict.published import page
from experiments.predict.published.table import Comparison, PublishedTable
from experiments.validation import bench as measured
from experiments.validation import bench_algorithms as measured_algorithms
from experiments.validation import bench_simulation as measured_simulation
from experiments.validation.bench_simulation import Case
from tests.experiments.recorded import write_run

SMALL = ["model=mlp", "model.hidden=[8]"]


@pytest.fixture
def printed_by(monkeypatch, capsys):
    """Runs a command's `main` with these words; returns what it has printed."""

    def run(command, *words: object) -> str:
        monkeypatch.setattr("sys.argv", [command.__name__, *map(str, words)])
        assert command.main() == 0
        return capsys.readouterr().out

    return run


def test_gradients(printed_by):
    words = ["algo=allreduce", "task=mnist5k", *SMALL, "workers=2", "batch_size=4"]
    # The first layer's rank is that of four examples, at most.
    assert printed_by(gradients, *words, "--batches", 1).startswith("rank at most 4; entries: ")


def test_convergence(printed_by, tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / "runs" / algo, algo, num_rows=2)
    text = printed_by(convergence, tmp_path / "runs", "--out", tmp_path / "out")
    assert "| algorithm | optimizer, learning rate x | test accuracy (%) |" in text
    assert "| bytegrad | sgd, 1 |" in text
    table = (tmp_path / "out" / "table.md").read_text()
    assert table and text.startswith(table)
    called = f"python -m experiments.convergence {tmp_path}/runs --out {tmp_path}/out"
    assert f"\n    {called}\n" in table
    text = printed_by(convergence, tmp_path / "runs")
    assert f"\n    python -m experiments.convergence {tmp_path}/runs\n" in text


def test_published(printed_by, monkeypatch, tmp_path):
    step = StepPrediction(step_s=1.0, compute_s=0.5, examples_per_s=99, bytes_sent=0)
    row = Comparison(row="x", setting="y", published=100, batch=9, predicted=step)
    table = PublishedTable(title="A title", source="S", fitted="F", rows=[row])
    monkeypatch.setattr(page, "tables", lambda: [table])
    text = printed_by(published, "--out", tmp_path)
    assert text.startswith("# Predicted against published\n") and "## A title\n" in text
    assert (tmp_path / "published.md").read_text() == text


def test_bench(printed_by, monkeypatch):
    asked = []

    def measure(overrides, folder):
        asked.append(overrides)
        return 20.0, 1.5

    monkeypatch.setattr(measured, "measure", measure)
    text = printed_by(bench, "--repeats", 1, "--net", "wan")
    assert asked == [[*words, "net=wan"] for words in measured.CASES.values()]
    assert "50" in text.split("ms a step, torch DDP")[1].split()


def test_bench_algorithms(printed_by, monkeypatch):
    monkeypatch.setattr(measured_algorithms, "choices", lambda _: ["allreduce", "top_k"])
    monkeypatch.setattr(measured_algorithms, "WARM_UP_STEPS", 2)
    monkeypatch.setattr(measured_algorithms, "NUM_STEPS", 2)
    text = printed_by(bench_algorithms, "--repeats", 1)
    assert "ms a step beyond plain" in text
    assert all(f" {name} " in text for name in ("allreduce", "top_k"))


def test_bench_simulation(printed_by, monkeypatch):
    others = []
    monkeypatch.setattr(measured_simulation, "CASES", [Case(tuple(SMALL), 2, 4)])
    run = SimpleNamespace(run=lambda words, check: others.append(words))
    monkeypatch.setattr(bench_simulation, "subprocess", run)
    text = printed_by(bench_simulation, "--repeats", 1)
    assert text.startswith("2 workers x 4, model=mlp model.hidden=[8]: a step, processor time")
    assert "\n  one plain model, 1 thread " in text
    assert [words[-2:] for words in others] == [["--memory", "32"], ["--memory", "128"]]


def test_bench_simulation_of_memory(printed_by):
    text = printed_by(bench_simulation, "--memory", 2, *SMALL)
    assert text.startswith("2 workers x 8, model=mlp model.hidden=[8]: at most ")
