import itertools
import json
import math
import subprocess
import sys
from dataclasses import asdict, replace

import pandas as pd
import pytest
import yaml
from pyarrow import parquet

from experiments.runs.fields import field_types
from experiments.runs.load import load_metrics, load_rows, load_runs
from experiments.runs.records import RunFolder
from experiments.runs.summary import NOT_ENDED, Summary, read_summary
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, time_to_target
from host.environment import environment
from host.errors import DiskError, UserError

CONFIG = {"seed": 3, "algo": {"_target_": "ByteGrad", "bits": 8}, "optim": {"lr": 1e-5}}
START = Summary(algo="bytegrad", net="wan", task="digits", workers=4, seed=3)
END = replace(START, status="completed", steps=2, time_to_accuracy_s=1.5, final_accuracy=0.9)
METRICS = list(field_types(MetricsRow))
ROWS = [
    MetricsRow(kind="step", step=1, time_s=0.5, loss=math.nan, bytes_sent=2**40 + 1),
    MetricsRow(kind="step", step=2, time_s=1.0, loss=math.inf),
    MetricsRow(kind="evaluation", step=2, epoch=0.1, time_s=1.0, accuracy=0.75),
]


@pytest.fixture
def run(tmp_path):
    run = RunFolder.create(tmp_path / "deep" / "net=wan", CONFIG, START)
    for row in ROWS:
        run.log(row)
    return run


def rows_of(path):
    """The metrics as rows without what is missing, and the problems of reading them."""
    frame = load_metrics(path)
    rows = [frame.loc[i, METRICS].dropna().to_dict() for i in frame.index]
    return rows, frame.attrs["problems"]


def known(record):
    """Its fields that are neither None nor NaN, as a frame has them."""
    return {k: v for k, v in asdict(record).items() if v is not None and v == v}


WITHOUT_NAN = [known(row) for row in ROWS]


def test_a_new_run_reads_as_failed(run):
    [row] = load_runs(run.path).to_dict("records")
    assert {name: row[name] for name in known(START)} == known(START)
    assert (row["status"], row["reason"]) == ("failed", NOT_ENDED)
    assert set(json.loads((run.path / "summary.json").read_text())) == set(asdict(Summary()))


def test_the_summary_given_at_the_start_cannot_be_optimistic(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG, END)
    assert load_runs(tmp_path)["status"].tolist() == ["failed"]


def test_config_and_environment_survive(run):
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
    facts = json.loads((run.path / "environment.json").read_text())
    assert facts["packages"]["torch"] and facts["cores"] >= 1 and facts["cpu"] and facts["host"]
    assert facts["started"].endswith("+00:00")


def test_environment_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr("host.environment.__file__", str(tmp_path / "environment.py"))
    assert (environment()["git_commit"], environment()["git_dirty"]) == (None, None)


def test_environment_knows_the_commit_and_whether_it_was_changed(monkeypatch, tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    monkeypatch.setattr("host.environment.__file__", str(tmp_path / "environment.py"))
    assert environment()["git_commit"] == git("rev-parse", "HEAD")
    assert environment()["git_dirty"] is False
    (tmp_path / "records.py").touch()
    assert environment()["git_dirty"] is True


@pytest.mark.parametrize("name", ["config.yaml", "summary.json"])
def test_a_folder_with_a_run_is_refused(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(UserError, match=r"already holds a run: choose another hydra\.run\.dir="):
        RunFolder.create(tmp_path, CONFIG, START)
    assert (tmp_path / name).read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_a_users_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder.create(tmp_path / "file", CONFIG, START)


def test_each_row_is_in_the_journal_at_once(run):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3 and math.isnan(json.loads(lines[0])["loss"])


def test_rows_survive_the_round_trip_with_nan_and_infinity(run):
    assert rows_of(run.path) == (WITHOUT_NAN, [])
    run.finish(END)
    assert rows_of(run.path) == (WITHOUT_NAN, [])
    stored = parquet.ParquetFile(run.path / "metrics.parquet").read()["loss"].to_pylist()
    assert math.isnan(stored[0]) and stored[1:] == [math.inf, None]


def test_a_row_of_the_wrong_type_is_refused_and_tensors_are_not(run):
    with pytest.raises(ValueError, match="many"):
        run.log(replace(ROWS[0], step="many"))
    torch = pytest.importorskip("torch")
    run.log(replace(ROWS[0], step=torch.tensor(7), loss=torch.tensor(0.5)))
    last = load_metrics(run.path).iloc[-1]
    assert (last["step"], last["loss"]) == (7, 0.5)


def test_a_further_column_of_numbers_in_a_strangers_record_is_read(run):
    with (run.path / "metrics.jsonl").open("a") as journal:
        journal.write(json.dumps({"kind": "step", "step": 7, "consensus": 2}) + "\n")
    for _ in range(2):  # from the journal, then from the table
        last = load_metrics(run.path).iloc[-1]
        assert (last["step"], last["consensus"]) == (7, 2.0)
        assert [known(row) for row in load_rows(run.path)[:-1]] == WITHOUT_NAN
        run.finish(END)


def test_a_record_with_fewer_or_more_fields_is_read(run):
    file = run.path / "summary.json"
    fields = json.loads(file.read_text())
    del fields["hosts"], fields["lr_scale"]
    file.write_text(json.dumps(fields | {"temperature": 21}))
    [row] = load_runs(run.path).to_dict("records")
    assert (row["algo"], row["temperature"]) == ("bytegrad", 21)
    assert read_summary(run.path) == replace(START, status="failed", reason=NOT_ENDED, restarts=0)


def test_finish_leaves_the_table_and_the_summary(run):
    run.finish(END)
    assert {file.name for file in run.path.iterdir()} == {
        *("config.yaml", "environment.json", "metrics.parquet", "summary.json")
    }
    [row] = load_runs(run.path).to_dict("records")
    assert {name: row[name] for name in known(END)} == known(END)
    assert pd.isna(row["reason"])  # the pessimistic sentence is gone


def test_finish_twice_equals_once_and_the_later_summary_wins(run):
    run.finish(END)
    run.finish(replace(END, status="failed", reason="worker 2 died"))
    assert rows_of(run.path) == (WITHOUT_NAN, [])
    [row] = load_runs(run.path).to_dict("records")
    assert (row["status"], row["reason"], row["steps"]) == ("failed", "worker 2 died", 2)


def test_a_run_without_rows_has_an_empty_table(tmp_path):
    run = RunFolder.create(tmp_path / "run", CONFIG, START)
    assert rows_of(tmp_path) == ([], [])
    run.finish(replace(START, status="failed", reason="no network"))
    assert rows_of(tmp_path) == ([], [])
    assert (run.path / "metrics.parquet").exists()


def test_logging_after_the_end_would_lose_rows(run):
    run.finish(END)
    with pytest.raises(AssertionError, match="after finish"):
        run.log(ROWS[0])


def test_summary_has_null_for_what_json_cannot_say(run):
    numpy = pytest.importorskip("numpy")
    odd = replace(
        END, final_accuracy=math.nan, steps_per_s=numpy.float32("inf"), steps=numpy.int64(9)
    )
    run.finish(replace(odd, tcp={"nested": [1.0, -math.inf]}))
    summary = json.loads(
        (run.path / "summary.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert (summary["final_accuracy"], summary["steps_per_s"], summary["steps"]) == (None, None, 9)
    assert summary["tcp"] == {"nested": [1.0, None]}


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_record_that_goes_on_has_the_rows_up_to_there_and_those_that_follow(run, has_ended):
    if has_ended:
        run.finish(replace(END, status="failed", reason="worker 2 died"))
    again = RunFolder.reopen(run.path, CONFIG, START, [], ROWS[:1])
    again.log(ROWS[2])
    assert rows_of(run.path) == ([WITHOUT_NAN[0], WITHOUT_NAN[2]], [])


def test_a_record_whose_files_are_deleted_does_not_come_back_in_part(run):
    for file in run.path.iterdir():
        file.unlink()
    for write in (lambda: run.log(ROWS[0]), lambda: run.finish(END)):
        with pytest.raises(DiskError, match="No such file"):
            write()
        assert list(run.path.iterdir()) == []


def killed_after(num_calls, call):
    """`call`, but the process ends before it is called once more than `num_calls` times."""
    calls = itertools.count()

    def counted(*arguments, **options):
        if next(calls) == num_calls:
            raise KeyboardInterrupt
        return call(*arguments, **options)

    return counted


@pytest.mark.parametrize("num_calls", [0, 1])  # the reserve, the journal; the table, the summary
@pytest.mark.parametrize("step", ["unlink", "replace"])
def test_finish_killed_before_any_step_loses_nothing(run, monkeypatch, step, num_calls):
    with monkeypatch.context() as patch:
        files = type(run.path)
        patch.setattr(files, step, killed_after(num_calls, getattr(files, step)))
        with pytest.raises(KeyboardInterrupt):
            run.finish(END)
    assert rows_of(run.path) == (WITHOUT_NAN, [])
    assert load_runs(run.path)["status"].tolist() == ["failed"]

    run.finish(END)
    assert rows_of(run.path) == (WITHOUT_NAN, [])
    assert load_runs(run.path)["status"].tolist() == ["completed"]
    assert not (run.path / "metrics.jsonl").exists()


def test_a_run_killed_by_sigkill_is_readable(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from experiments.runs.records import RunFolder\n"
        "from experiments.runs.summary import Summary\n"
        "from experiments.training.metrics import MetricsRow\n"
        f"run = RunFolder.create(sys.argv[1], {CONFIG}, {START})\n"
        f"for row in {ROWS[1:]}: run.log(row)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    ).replace("inf", "float('inf')")
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")])
    assert killed.returncode == -9
    assert rows_of(tmp_path) == (WITHOUT_NAN[1:], [])
    assert load_runs(tmp_path)["reason"].tolist() == [NOT_ENDED]


def test_a_torn_last_line_is_named_and_the_rest_is_read(run):
    journal = run.path / "metrics.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"kind": "step", "st\xc3')
    rows, [problem] = rows_of(run.path)
    assert rows == WITHOUT_NAN
    assert str(journal) in problem and "line 4" in problem
    run.finish(END)
    assert rows_of(run.path) == (WITHOUT_NAN, [])


@pytest.mark.parametrize("keep_journal", [True, False])
@pytest.mark.parametrize("size", [0, 5, 500])
def test_half_a_parquet_falls_back_on_the_journal(run, size, keep_journal):
    journal = (run.path / "metrics.jsonl").read_bytes()
    run.finish(END)
    table = run.path / "metrics.parquet"
    table.write_bytes(table.read_bytes()[:size])
    if keep_journal:
        (run.path / "metrics.jsonl").write_bytes(journal)
    rows, [problem] = rows_of(run.path)
    assert rows == (WITHOUT_NAN if keep_journal else [])
    assert str(table) in problem
    assert load_runs(run.path)["status"].tolist() == ["completed"]


def test_a_foreign_parquet_is_named(run):
    import pyarrow as pa

    parquet.write_table(pa.table({"step": ["one"]}), run.path / "metrics.parquet")
    rows, [problem] = rows_of(run.path)
    assert rows == WITHOUT_NAN and "metrics.parquet" in problem


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"name": "else"}', '{"algo": "a", "status": "x", "steps": "y"}']
)
def test_a_foreign_summary_is_named_and_left_out(run, text):
    other = run.path.parent / "other"
    other.mkdir()
    (other / "summary.json").write_text(text)
    runs = load_runs(run.path.parent)
    assert runs["folder"].tolist() == [str(run.path)]
    [problem] = runs.attrs["problems"]
    assert str(other) in problem
    assert rows_of(run.path.parent) == (WITHOUT_NAN, [problem])


def test_metrics_without_a_summary_are_named(run):
    (run.path / "summary.json").unlink()
    runs = load_runs(run.path.parent)
    assert len(runs) == 0 and "summary.json" in runs.attrs["problems"][0]


def test_many_runs_are_joined_with_what_they_are(tmp_path):
    for seed in range(3):
        run = RunFolder.create(
            tmp_path / f"algo=bytegrad,seed={seed}", CONFIG, replace(START, seed=seed)
        )
        run.log(MetricsRow(kind="step", step=seed, time_s=1.0, loss=seed / 2))
        if seed != 1:  # one run was cut off: its rows come from the journal
            run.finish(replace(END, seed=seed))
    metrics = load_metrics(tmp_path)
    assert list(metrics.columns) == [
        *("folder", "algo", "net", "task", "workers", "seed"),
        *METRICS,
    ]
    assert metrics["seed"].tolist() == metrics["step"].tolist() == [0, 1, 2]
    assert metrics["loss"].tolist() == [0.0, 0.5, 1.0]
    assert metrics["folder"].tolist() == load_runs(tmp_path)["folder"].tolist()
    assert set(metrics["net"]) == {"wan"}


def test_no_runs_give_empty_frames_with_the_same_columns_and_types(tmp_path, run):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    for load in (load_runs, load_metrics):
        empty = load(nothing)
        assert len(empty) == 0 and empty.attrs["problems"] == []
        assert empty.dtypes.to_dict() == load(run.path).dtypes.to_dict()


def test_a_path_that_is_no_folder_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="There is no folder"):
        load_runs(tmp_path / "misspelt")


def test_time_to_accuracy_is_where_the_line_to_the_first_evaluation_at_the_target_is_there():
    rows = [
        MetricsRow(kind="evaluation", step=1, time_s=1.0, accuracy=math.nan),
        MetricsRow(kind="evaluation", step=2, time_s=2.0, accuracy=0.7),
        MetricsRow(kind="step", step=3, time_s=2.5, accuracy=1.0),
        MetricsRow(kind="evaluation", step=3, time_s=3.0),
        MetricsRow(kind="evaluation", step=4, time_s=4.0, accuracy=0.9),
        MetricsRow(kind="evaluation", step=5, time_s=5.0, accuracy=0.95),
    ]
    assert time_to_target(rows, Target(value=0.9)) == 4.0
    assert time_to_target(rows, Target(value=0.8)) == pytest.approx(3.0)
    assert time_to_target(rows, Target(value=0.94)) == pytest.approx(4.8)
    assert time_to_target(rows, Target(value=0.5)) == 2.0
    assert time_to_target(rows, Target(value=0.96)) is None
    assert time_to_target(rows, Target()) is None
    assert time_to_target([], Target(value=0.5)) is None
    losses = [replace(row, score=row.accuracy and 1 - row.accuracy) for row in rows]
    assert time_to_target(losses, Target(metric="loss", value=0.1001)) == pytest.approx(3.999)
    assert time_to_target(losses, Target(metric="loss", value=0.2)) == pytest.approx(3.0)
    gone = replace(losses[1], score=math.inf)
    assert time_to_target([gone, losses[4]], Target(metric="loss", value=0.2)) == 4.0
    assert time_to_target(losses, Target(metric="loss", value=0.01)) is None


def test_importing_records_does_not_import_the_slow_libraries():
    program = (
        "import sys, experiments.runs.records\n"
        "slow = {'pandas', 'pyarrow', 'numpy', 'torch', 'omegaconf'} & set(sys.modules)\n"
        "sys.exit(str(slow) if slow else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
