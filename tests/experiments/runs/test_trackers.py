"""What a run tells to TensorBoard, MLflow and Weights & Biases, read back from each."""

import json
import struct
import sys
from dataclasses import replace
from unittest.mock import ANY, Mock

import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs import folder_lock
from experiments.runs.run import Recorder, known_summary
from experiments.runs.summary import Summary
from experiments.runs.trackers import tracker
from experiments.runs.trackers.tracker import TrackedRun, Tracking
from experiments.training.evaluation import Evaluation
from experiments.training.result import Result
from host.errors import UserError
from tests import app
from tests.experiments.runs.tell import ROWS


def told(name, folder, **variables):
    module = "tests.experiments.runs.tell"
    return app.run(name, folder, module=module, strict=False, environment=variables)


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def recorded(folder, goes_on=False):
    """A run that logs `ROWS`, in whose folder TensorBoard looks."""
    result = Result(
        steps=10,
        time_s=2.0,
        bytes_sent=None,
        exposed_communication_s=0.0,
        validation=Evaluation(0.5, 1.0, 0.0),
        test=Evaluation(0.75, 1.0, 0.0),
    )

    def start(plan, data, on_network, on_row):
        on_network(None)
        for row in ROWS:
            on_row(row)
        return [result]

    plan = make_plan(compose_config(["algo=allreduce", "tracker=tensorboard"]), folder)
    data = plan.task.load()
    summary = known_summary(plan, data)
    assert Recorder(plan, {}, (), start, summary, goes_on=goes_on).run(data) == "completed"


def test_tensorboard_shows_every_row_by_the_training_clock(tmp_path):
    pytest.importorskip("tensorboard")
    recorded(tmp_path / "run")
    recorded(tmp_path / "run", goes_on=True)  # told again, it stands there once
    shown = scalars(tmp_path / "run")
    assert [(step, value) for step, value, _ in shown["loss"]] == [(5, 1.5), (10, 0.5)]
    assert [(step, value) for step, value, _ in shown["accuracy"]] == [(5, 0.25), (8, 0.5)]
    first, second = (wall_s for _, _, wall_s in shown["loss"])
    assert second - first == pytest.approx(0.75, abs=1e-5)
    assert [value for _, value, _ in shown["result/final_accuracy"]] == [0.75]
    assert app.summary(tmp_path / "run")["status"] == "completed"


def test_mlflow_has_every_row_and_option(tmp_path):
    pytest.importorskip("mlflow")
    store = {
        "MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    finished = told("mlflow", tmp_path / "run", **store)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == {
        "status": "FINISHED",
        "name": "run",
        "params": {"algo.interval": "4", "seed": "0"},
        "final_accuracy": 0.75,
        "losses": [[5, 1.5, 1_000_000_000_500], [10, 0.5, 1_000_000_001_250]],
    }


def test_a_server_that_is_gone_does_not_end_the_run(tmp_path):
    pytest.importorskip("mlflow")
    nobody = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    finished = told("mlflow", tmp_path / "run", **nobody)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("tracker=mlflow failed, and the run goes on without: ") == 1


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:////proc/x.db"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://[bad"}),
        ("wandb", {"WANDB_MODE": "rubbish"}),
    ],
)
def test_a_setting_that_its_library_refuses_does_not_end_the_run(name, variables, tmp_path):
    pytest.importorskip(name)
    finished = told(name, tmp_path / "run", **variables)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count(f"tracker={name} failed, and the run goes on without: ") == 1


class Failing:
    """A tracker whose library fails at one moment, once it is there."""

    def __init__(self, moment: str, error: BaseException) -> None:
        self.moment, self.error, self.told = moment, error, []

    def __getattr__(self, moment: str):
        def fail_or_note(*_: object):
            self.told.append(moment)
            if moment == self.moment:
                raise self.error
            return self

        return fail_or_note


def tell_failing(failing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "experiments.runs.trackers.tensorboard", failing)
    monkeypatch.setattr(tracker, "check", lambda name: None)
    tracking = Tracking("tensorboard", TrackedRun(folder=tmp_path, config={}))
    for row in ROWS[:2]:
        tracking.log(row)
    tracking.finish(Summary(status="completed"))
    return failing.told


@pytest.mark.parametrize("error", [ValueError("a\nb"), ImportError("a"), KeyError(), OSError("a")])
@pytest.mark.parametrize(
    ("moment", "told_of"),
    [
        ("start", ["start"]),
        ("log", ["start", "log"]),
        ("finish", ["start", *2 * ["log"], "finish"]),
    ],
)
def test_whatever_its_library_raises_is_said_once(
    moment, told_of, error, tmp_path, monkeypatch, capsys
):
    assert tell_failing(Failing(moment, error), tmp_path, monkeypatch) == told_of
    said = "KeyError" if isinstance(error, KeyError) else "a"
    line = f"tracker=tensorboard failed, and the run goes on without: {said}\n"
    assert capsys.readouterr().out == line


def test_who_stops_the_run_stops_it_while_a_tracker_is_told(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        tell_failing(Failing("log", KeyboardInterrupt()), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("uri", "store", "is_alone"),
    [
        (None, "mlflow.db", True),
        ("sqlite:///own.db", "own.db", True),
        ("file:own%20store", "own store", True),
        ("own_store", "own_store", True),
        ("http://127.0.0.1:9/own.db", "own.db", False),
    ],
)
def test_a_local_store_of_mlflow_is_opened_by_one_run_at_a_time(
    uri, store, is_alone, tmp_path, monkeypatch
):
    mlflow = mlflow_tracker(monkeypatch)
    monkeypatch.chdir(tmp_path)
    if uri is None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    held = []

    def client():
        held.append(folder_lock.is_held(tmp_path / store))
        return Mock()

    monkeypatch.setattr(mlflow, "MlflowClient", client)
    mlflow.start(TrackedRun(folder=tmp_path / "run", config={}))
    assert held == [is_alone]
    assert not folder_lock.is_held(tmp_path / store)
    assert not list(tmp_path.iterdir())


def mlflow_tracker(monkeypatch):
    """Its module, with locks for which nobody waits."""
    pytest.importorskip("mlflow")
    from experiments.runs.trackers import mlflow

    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.0)
    monkeypatch.setattr(mlflow, "_MAKING_LIMIT_S", 0.0)
    return mlflow


def test_a_store_that_others_do_not_leave_is_left_to_them(tmp_path, monkeypatch):
    mlflow = mlflow_tracker(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/own.db")
    monkeypatch.setattr(mlflow, "MlflowClient", Mock())
    with (
        folder_lock.hold(tmp_path / "own.db"),
        pytest.raises(TimeoutError, match=r"other runs have not opened .*own\.db in 0 s"),
    ):
        mlflow.start(TrackedRun(folder=tmp_path, config={}))


def test_an_experiment_that_another_run_has_made_meanwhile_is_the_same(tmp_path, monkeypatch):
    mlflow = mlflow_tracker(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    client = Mock()
    client.get_experiment_by_name.side_effect = [None, Mock(experiment_id="7")]
    client.create_experiment.side_effect = mlflow.MlflowException("it is there")
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: client)
    mlflow.start(TrackedRun(folder=tmp_path, config={}))
    client.create_run.assert_called_once_with("7", run_name=tmp_path.name)


def test_a_run_without_a_number_ends_in_mlflow_too(tmp_path, monkeypatch):
    mlflow = mlflow_tracker(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    client = Mock()
    client.log_batch.return_value = None  # as MLflow's own for nothing
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: client)
    mlflow.start(TrackedRun(folder=tmp_path, config={})).finish(Summary(status="failed"))
    client.set_terminated.assert_called_once_with(ANY, "FAILED")


def test_a_batch_that_is_lost_leaves_no_run_at_work_for_ever(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.exceptions import MlflowException

    from experiments.runs.trackers import mlflow

    lost = Mock()
    lost.wait.side_effect = MlflowException("the server was away")
    client = Mock()
    client.log_batch.return_value = lost
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: client)
    own = mlflow.start(TrackedRun(folder=tmp_path, config={}))
    own.log(ROWS[0])
    with pytest.raises(MlflowException, match="the server was away"):
        own.finish(Summary(status="completed"))
    client.set_terminated.assert_called_once_with(ANY, "FINISHED")


def test_wandb_writes_a_run_to_be_sent_later(tmp_path):
    pytest.importorskip("wandb")
    finished = told("wandb", tmp_path / "run")
    assert (finished.returncode, finished.stdout) == (0, ""), finished.stderr
    [file] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    text = file.read_bytes()
    assert all(name in text for name in (b"loss", b"accuracy", b"interval", b"final_accuracy"))
    points = [(row["step"], row.get("loss"), row.get("accuracy")) for row in history(file)]
    assert points == [(5, 1.5, None), (5, None, 0.25), (10, 0.5, None), (8, None, 0.5)]


def history(file):
    """The rows that a short file of wandb's has to be sent, each a dictionary of numbers: LevelDB's
    log of protocol buffers.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    log, at = file.read_bytes(), 7  # behind what says whose it is
    while at < len(log):
        _, size, kind = struct.unpack_from("<IHB", log, at)
        at += 7 + size
        assert kind == 1, "it fits into one block"
        record = Record.FromString(log[at - size : at])
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


def test_a_tracker_that_there_is_not_is_refused(tmp_path, monkeypatch):
    run = TrackedRun(folder=tmp_path, config={})
    with pytest.raises(
        UserError, match=r"must be one of tensorboard, mlflow, wandb, or null, got comet"
    ):
        Tracking("comet", run)
    monkeypatch.setitem(tracker.TRACKERS, "wandb", "no_such_package")
    with pytest.raises(UserError, match=r"tracker=wandb needs a package: .*'relaxlab\[wandb\]'"):
        Tracking("wandb", run)


def test_without_a_tracker_nothing_is_told(tmp_path):
    tracking = Tracking(None, TrackedRun(folder=tmp_path, config={}))
    tracking.start()
    tracking.log(replace(ROWS[0], loss=None))
    assert not list(tmp_path.iterdir())
