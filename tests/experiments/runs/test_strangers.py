"""Files of strangers: no code in them runs, each is named, and the rest is read."""

import json
import os
import pickle
from contextlib import suppress
from threading import Timer

import pytest
import torch
from pyarrow import parquet

from experiments.plan.overrides import with_saved_overrides
from experiments.report.data import ReportData
from experiments.report.page.run_table import run_table
from experiments.report.sections.timeline import TRACE, load_trace
from experiments.report.tuned import FILE, TARGETS, load_targets, load_tunings
from experiments.runs.load import load_config, load_environment, load_metrics, load_runs
from experiments.runs.study import find_records
from experiments.simulated.kept_trainings import KeptTrainings
from experiments.training.checkpoints.checkpoint import Checkpoints
from experiments.training.checkpoints.places import complete_steps
from host.errors import UserError
from tests.experiments.recorded import TARGET, at_target, write_run
from tests.hostile import Hostile

NESTED = 100_000


class Unknown:
    """No class of an algorithm's state."""


def test_a_hostile_checkpoint_is_refused_and_runs_nothing(tmp_path):
    own = Checkpoints(tmp_path, 0, 1)
    own.save(3, {"step": 3})
    file = tmp_path / "checkpoints" / "step_00000003" / "0_of_1.pt"
    assert own.load(3) == {"step": 3}
    torch.save({"step": Hostile(tmp_path / "mark")}, file)
    with pytest.raises(UserError, match=r"0_of_1\.pt is no checkpoint of relaxlab"):
        own.load(3)
    assert not (tmp_path / "mark").exists()


def other_byte(content: bytes) -> bytes:
    """Another number in the middle of the weights."""
    place = content.index(torch.ones(30_000).numpy().tobytes()) + 60_000
    return content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damaged",
    [*(lambda content, size=size: content[:size] for size in (0, 10, 300, 20_000)), other_byte],
    ids=["no byte", "10 bytes", "300 bytes", "20,000 bytes", "another byte"],
)
def test_a_damaged_checkpoint_is_named(tmp_path, damaged):
    own = Checkpoints(tmp_path, 0, 1)
    own.save(3, {"weights": torch.ones(30_000)})
    file = tmp_path / "checkpoints" / "step_00000003" / "0_of_1.pt"
    file.write_bytes(damaged(file.read_bytes()))
    with pytest.raises(UserError, match=r"0_of_1\.pt is no checkpoint of relaxlab, or is damaged"):
        own.load(3)


def test_a_checkpoint_that_is_deleted_meanwhile_is_named(tmp_path):
    own = Checkpoints(tmp_path, 0, 1)
    sentence = r"let the process end that runs .*, if one does, since it deletes old checkpoints"
    with pytest.raises(
        UserError, match=rf"0_of_1\.pt cannot be read \(No such file .*: {sentence}"
    ):
        own.load(3)
    with pytest.raises(UserError, match=f"step_00000003 is not complete any more: {sentence}"):
        own.of_step(3)


def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path):
    with pytest.raises(UserError, match="Unknown is part of an algorithm's state"):
        Checkpoints(tmp_path, 0, 1).save(3, {"step": {"residual": Unknown()}})


def test_a_hostile_training_serves_nobody_and_runs_nothing(tmp_path):
    (tmp_path / "key.pickle").write_bytes(pickle.dumps(Hostile(tmp_path / "mark")))
    assert KeptTrainings(tmp_path).find("key") is None
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algo._target_=os.system", "would run code of 'os'"),
        ("algo._target_=.evil.X", "would run code of 'evil'"),
        ("algo._target_=torch.hub.load", r"would run code of 'torch\.hub'"),
        (
            "algo._target_=bagua_algos.communication.threads.job_thread.ctypes.CDLL",
            "would run code of",
        ),
        ("algo._target_=experiments.plan.compose.compose_config", "would run code of"),
        ('model={_target_: "subprocess.run"}', "would run code of 'subprocess'"),
        ("+task.x.y={a: {_target_: builtins.eval}}", "would run code of 'builtins'"),
        ("hydra.sweeper._target_=bagua_algos.X", r"sets hydra\.sweeper"),
        ("hydra/launcher=ray", "sets hydra/launcher"),
        ("--config-dir=/somewhere", "sets --config-dir"),
        ("-m", "sets -m"),
    ],
)
def test_a_record_that_names_foreign_code_is_refused(tmp_path, override, said):
    (tmp_path / "environment.json").write_text(json.dumps({"overrides": ["seed=1", override]}))
    with pytest.raises(UserError, match=said):
        with_saved_overrides([f"resume={tmp_path}"])


@pytest.mark.parametrize("text", ["[]", "7", "{}", '{"overrides": 5}', '{"overrides": "seed=1"}'])
def test_a_record_that_does_not_say_its_words_is_no_run(tmp_path, text):
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(UserError, match="that is no folder of a run"):
        with_saved_overrides([f"resume={tmp_path}"])


def test_what_a_record_may_name(tmp_path, monkeypatch):
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    saved = ["algo._target_=mine.Own", "model._target_=torch.nn.modules.linear.Identity", "seed=3"]
    (tmp_path / "environment.json").write_text(json.dumps({"overrides": saved}))
    resume = f"resume={tmp_path}"
    assert with_saved_overrides([resume]) == [*saved, resume]
    own = "algo._target_=somebody.Else"  # the user's own word
    assert with_saved_overrides([resume, own]) == [*saved[1:], resume, own]


def bomb():
    """YAML of 30 lines that stands for 2^30 options."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 30)]
    return "\n".join(lines)


def bomb_of_lists():
    """YAML of 30 lines that stands for 2^30 numbers."""
    lines = ["a0: &a0 [1, 2]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.yaml", bomb()),
        ("config.yaml", bomb_of_lists()),
        ("config.yaml", bomb_of_lists().replace("[1, 2]", "[]")),
        ("config.yaml", "a: &a {x: 1}\nb: {<<: [" + "*a, " * 10_000 + "]}"),
        ("config.yaml", "net: &a {b: *a}"),
        ("config.yaml", "x: &a [*a]"),
        ("config.yaml", "a: &a {<<: *a}"),
        ("config.yaml", "a: !!timestamp x"),
        ("config.yaml", "a: !!bool x"),
        ("config.yaml", "[" * NESTED),
        ("config.yaml", "a: " + "{a: " * 2000 + "1" + "}" * 2000),
        ("config.yaml", "!!python/object/apply:os.system ['touch mark']"),
        ("summary.json", "[" * NESTED),
        ("summary.json", '{"algo": "\\ud800", "status": "completed"}'),
        ("summary.json", '{"algo": "a", "status": "completed", "seed": 1' + 30 * "0" + "}"),
        ("summary.json", '{"algo": "a", "status": "completed", "resumed_from": "\\u0000"}'),
        ("summary.json", '{"algo": {"a": 1}, "status": "completed", "seed": 1e400}'),
        ("summary.json", '{"algo": "a", "status": "completed", "workers": 0}'),
        ("summary.json", '{"algo": "a", "status": "completed", "time_to_accuracy_s": -5}'),
    ],
)
def test_a_hostile_record_does_not_keep_others_from_being_read(tmp_path, file, text):
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", seed=1)
    (tmp_path / "bad" / file).write_text(text)
    data = ReportData.load(tmp_path)
    assert "optim.lr" in run_table(data, tmp_path)["configuration"]  # of the good one
    table = data.table
    unreadable = {"allreduce configuration=unreadable"} if file == "config.yaml" else set()
    assert set(table.name) == {"allreduce", *unreadable}
    assert table.runs.tolist() == [1] * len(table)


def test_no_name_in_a_strangers_record_takes_the_place_of_what_a_report_adds(tmp_path):
    folder = tmp_path / "a"
    own = {"label": "mine", "folder": "/nowhere", "name": 3, "target": 4, "is_baseline": 5}
    own |= {"steps_to_accuracy": 6, "mb_to_accuracy": 7}
    summary = write_run(folder) | own
    (folder / "summary.json").write_text(json.dumps(summary))
    metrics = parquet.read_table(folder / "metrics.parquet").to_pylist()
    (folder / "metrics.parquet").unlink()
    rows = [{k: v for k, v in row.items() if v is not None} | {"folder": 1.0} for row in metrics]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ReportData.load(tmp_path)
    assert data.labels == ("allreduce",) and list(data.runs.folder) == [str(folder)]
    assert len(data.evaluations) == 20
    reached_s = at_target(metrics, TARGET)["time_s"]
    assert data.table.time_to_accuracy_s.tolist() == pytest.approx([reached_s])
    assert data.table.steps_to_accuracy[0] > 10


def test_a_number_that_is_none_is_told_as_it_is(tmp_path):
    write_run(tmp_path / "a")
    with (tmp_path / "a" / "config.yaml").open("a") as config:
        config.write("data: {partition: dirichlet, alpha: [much]}\n")
    assert list(ReportData.load(tmp_path).runs.partition) == ["dirichlet, alpha=['much']"]


@pytest.mark.parametrize("field", ['"step": 1' + 30 * "0", r'"kind": "\ud800"', r'"\ud800": 1'])
def test_a_row_that_no_table_could_hold_is_left_out(tmp_path, field):
    write_run(tmp_path / "a")
    (tmp_path / "a" / "metrics.parquet").unlink()
    (tmp_path / "a" / "metrics.jsonl").write_text(
        f'{{"kind": "evaluation", "step": 1, "accuracy": 0.5}}\n{{"kind": "step", {field}}}\n'
    )
    metrics = load_metrics(tmp_path)
    assert len(metrics) == 1 and "line 2 cannot be read" in metrics.attrs["problems"][0]


def test_resume_null_is_none_and_an_empty_one_is_refused():
    assert with_saved_overrides(["resume=null", "seed=1"]) == ["resume=null", "seed=1"]
    with pytest.raises(UserError, match=r"^resume= names no folder"):
        with_saved_overrides(["resume="])


@pytest.fixture
def make_pipe():
    """Puts a pipe in the place of a file. Who waits for it gets nothing from it after a while."""
    timers = []

    def let_go(file):
        with suppress(OSError):  # nobody waits
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))

    def make(file):
        file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(file)
        timers.append(Timer(5, let_go, [file]))
        timers[-1].start()
        return file

    yield make
    for timer in timers:
        timer.cancel()


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [("summary.json", False), ("metrics.parquet", True), ("metrics.jsonl", True)],
)
def test_a_pipe_in_a_run_is_named_and_not_waited_for(name, is_kept, tmp_path, make_pipe):
    write_run(tmp_path / "a")
    if name == "metrics.jsonl":
        (tmp_path / "a" / "metrics.parquet").unlink()
    make_pipe(tmp_path / "a" / name)
    (problem,) = load_metrics(tmp_path).attrs["problems"]
    assert name in problem and problem.endswith("cannot be read: it is no regular file.")
    assert len(load_runs(tmp_path)) == is_kept


def test_pipes_in_the_place_of_what_tells_of_a_run_are_not_waited_for(tmp_path, make_pipe):
    write_run(tmp_path / "a")
    config = make_pipe(tmp_path / "a" / "config.yaml")
    make_pipe(tmp_path / "a" / "environment.json")
    assert find_records(tmp_path) == {} and load_environment(tmp_path / "a") == {}
    (run,) = run_table(ReportData.load(tmp_path), tmp_path)["columns"][:1]
    assert run["name"] == "name"
    with pytest.raises(UserError, match=f"{config} is no whole .*it is no regular file"):
        load_config(tmp_path / "a")


def test_no_other_pipe_in_a_folder_is_waited_for(tmp_path, make_pipe):
    with pytest.raises(OSError, match="it is no regular file"):
        load_trace(make_pipe(tmp_path / TRACE))
    assert "it is no regular file" in load_tunings(make_pipe(tmp_path / FILE).parent)[1][0]
    with pytest.raises(UserError, match="it is no regular file"):
        load_targets(make_pipe(tmp_path / TARGETS).parent)
    make_pipe(tmp_path / "trainings" / "key.pickle")
    assert KeptTrainings(tmp_path / "trainings").find("key") is None
    make_pipe(tmp_path / "checkpoints" / "step_00000003" / "0_of_1.pt")
    with pytest.raises(UserError, match="no complete checkpoint"):
        complete_steps(tmp_path, 1)
