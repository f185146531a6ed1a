"""Searches among simulated workers: what they find, and that they go on where they were stopped."""

import math
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from experiments.advise.tuning import search, searchers
from experiments.advise.tuning.objectives import OBJECTIVES, Aim
from experiments.advise.tuning.request import read_request
from experiments.advise.tuning.search import Search
from experiments.report.data import ReportData
from experiments.report.sections.tuning import section
from experiments.report.tuned import FILE, Tuning, load_tunings
from experiments.runs.folder_lock import hold
from experiments.runs.load import load_rows
from experiments.runs.summary import read_summary
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, time_to_target
from host.errors import Failure, UserError
from tests import app
from tests.once import made_once

WORDS = (
    *("algo=allreduce", "model=mlp", "backend=sim", "net=slow_tcp", "workers=2", "max_steps=8"),
    *("eval_every=2", "target_accuracy=0.6"),
)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """With the profile of a first trial: no other one rehearses."""

    def make(folder: Path) -> None:
        Search(read_request([*WORDS, "ranges=engine", "trials=1", f"folder={folder}/first"])).run()

    first = made_once(tmp_path_factory, "tuned", make)
    return [*WORDS, f"profile={first / 'first/trials/0000/profile.yaml'}"]


def searched(words, folder, *others: str) -> Tuning:
    return Search(read_request([*words, f"folder={folder}", *others])).run()


def test_a_search_begins_with_the_defaults_and_goes_on(words, tmp_path):
    command = ["objective=time_to_accuracy", "ranges=optim"]
    first = searched(words, tmp_path, *command, "trials=2")
    assert [t.is_default for t in first.trials] == [True, False]
    assert first.defaults is not None and first.defaults.fields["lr_scale"] == 1.0
    second = searched(words, tmp_path, *command, "trials=8")
    assert second.trials[:2] == first.trials and len(second.trials) == 8
    best = min(t.values[0] for t in second.trials if t.state == "complete")
    assert second.trial(second.best[0]).values == [best]
    assert best <= first.defaults.values[0]
    assert all(t.state == "complete" for t in second.trials[:5])
    for trial in second.trials:
        if trial.state == "complete":
            folder = tmp_path / f"trials/{trial.number:04d}"
            target = Target(value=read_summary(folder).target_accuracy)
            reached_s = time_to_target(load_rows(folder), target)
            assert trial.values == [math.inf if reached_s is None else reached_s]
        else:  # without the target its clock was past twice the best one's
            summary = read_summary(tmp_path / f"trials/{trial.number:04d}")
            assert summary.status == "ended early"
            assert (summary.reason or "").startswith("without the target it has")
    assert load_tunings(tmp_path) == ([second], [])


def test_a_search_that_was_killed_at_its_beginning_still_tries_the_defaults(tmp_path, monkeypatch):
    request = read_request([*WORDS, "ranges=optim", "trials=1", f"folder={tmp_path}"])

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    for step in ("enqueue_trial", "set_user_attr"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(search.optuna.Study, step, killed)
            Search(request)
    (waiting,) = Search(request)._study.get_trials()
    assert waiting.state.name == "WAITING"


@pytest.mark.parametrize("own", ["{choices: [1, 3, 10]}", "{low: 1, high: 8}"])
def test_defaults_that_a_range_writes_as_whole_numbers_are_tried(own, tmp_path):
    ranges = tmp_path / "own.yaml"
    ranges.write_text(f"lr_scale: {own}\n")
    begun = Search(read_request([*WORDS, f"ranges={ranges}", f"folder={tmp_path}"]))
    assert repr(begun._values(begun._study.ask())) == "{'lr_scale': 1}"
    (trial,) = begun._study.get_trials()
    assert trial.user_attrs == {search._DEFAULT: True}


def test_where_only_time_changes_a_kept_training_serves_and_a_section_tells_of_it(
    words, tmp_path, capsys
):
    ranges, folder = tmp_path / "mine.yaml", tmp_path / "search"
    ranges.write_text("cluster.straggler: {low: 0.0, high: 5.0}\n")
    tuning = searched(words, folder, f"ranges={ranges}", "trials=6")
    said = [line for line in capsys.readouterr().err.splitlines() if " left" in line]
    assert len(said) == 6 and said[-1].endswith("; 100 % done, about 0 s left")
    runs = [read_summary(folder / f"trials/{n:04d}") for n in range(6)]
    assert [run.replayed_from for run in runs] == [None, *["0000"] * 5]
    done = [t for t in tuning.trials if t.state == "complete"]
    by_slowdown = sorted(done, key=lambda t: t.fields["cluster.straggler"])
    speeds = [t.values[0] for t in by_slowdown]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) >= 5
    assert tuning.best == [0], "the defaults have no straggler"
    assert tuning.importances["steps_per_s"] == {"cluster.straggler": 1.0}
    found = section(ReportData.load(folder))
    found.save(tmp_path)
    assert f"steps_per_s {speeds[0]:.4g} steps/s, the defaults {speeds[0]:.4g}" in found.finding
    assert "| cluster.straggler |" in (tmp_path / "tuning_importance.md").read_text()
    (folder / FILE).write_text("{")
    broken = ReportData.load(folder)
    assert section(broken).finding.startswith("No settings were searched")
    assert any(FILE in problem for problem in broken.problems)


def test_a_pair_has_a_front_and_a_section(words, tmp_path):
    ranges = tmp_path / "mine.yaml"
    ranges.write_text("max_steps: {choices: [4, 6, 8]}\nalgo.wire: {choices: [null, bf16]}\n")
    pair = "objective=time_to_accuracy,bytes_to_accuracy"
    tuning = searched(words, tmp_path / "search", f"ranges={ranges}", pair, "trials=6")
    done = [t for t in tuning.trials if t.state == "complete"]
    for trial in done:
        beaten = any(
            all(a <= b for a, b in zip(o.values, trial.values, strict=True))
            and o.values != trial.values
            for o in done
        )
        assert beaten != (trial.number in tuning.best)
    assert all("algo.wire=bf16" in command for command in tuning.commands), "half the bytes"
    found = section(ReportData.load(tmp_path / "search"))
    found.save(tmp_path)
    assert "no other one is better in time_to_accuracy and bytes_to_accuracy" in found.finding
    text = (tmp_path / "tuning_best.md").read_text()
    assert all(command in text for command in tuning.commands)
    assert (tmp_path / "tuning_trials.png").exists()


def test_accuracy_at_a_time_ends_runs_there(words, tmp_path):
    speed = read_summary(Path(words[-1].partition("=")[2]).parent).steps_per_s
    assert speed is not None
    own = ["objective=accuracy_at", f"at_s={4.5 / speed}", "ranges=optim", "trials=2"]
    tuning = searched(words, tmp_path, *own)
    for trial in tuning.trials:
        rows = [r for r in load_rows(tmp_path / f"trials/{trial.number:04d}") if r.is_evaluation]
        assert [row.step for row in rows] == [2, 4, 6], "of 8, and 4 is the last that counts"
        assert trial.values == [max(row.accuracy or 0 for row in rows[:2])]


def test_a_trial_that_was_ended_after_its_target_has_reached_it(words, tmp_path):
    speed = read_summary(Path(words[-1].partition("=")[2]).parent).steps_per_s
    assert speed is not None
    easy = [word for word in words if not word.startswith("target_accuracy")]
    own = ["objective=accuracy_at", f"at_s={4.5 / speed}", "ranges=optim", "trials=1"]
    for target, is_reached in ((0.01, True), (0.99, False)):
        folder = tmp_path / str(target)
        searched(easy, folder, *own, f"target_accuracy={target}")
        summary = read_summary(folder / "trials/0000")
        assert summary.status == "ended early"
        first = next(row.time_s for row in load_rows(folder / "trials/0000") if row.is_evaluation)
        assert summary.time_to_accuracy_s == (first if is_reached else None)
        [run] = ReportData.load(folder).table.to_dict("records")
        assert (run["missed"], run["status"] == "ended early") == (0, is_reached)


def test_settings_that_do_not_fit_do_not_count(words, tmp_path):
    ranges = tmp_path / "mine.yaml"
    ranges.write_text("algo.wire: {choices: [null, nonsense]}\n")
    tuning = searched(words, tmp_path / "search", f"ranges={ranges}", "trials=3")
    states = [t.state for t in tuning.trials]
    assert states.count("complete") == 3
    wires = {t.fields.get("algo.wire") for t in tuning.trials if t.state == "complete"}
    assert wires == {None}


def test_failures_in_a_row_end_it(words, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "run", lambda *_: "failed")
    monkeypatch.setattr(search, "read_summary", lambda _: type("S", (), {"reason": "no network"}))
    with pytest.raises(Failure, match="3 trials in a row failed: no network"):
        searched(words, tmp_path, "ranges=engine", "trials=9")


def test_another_search_in_the_folder_is_refused(words, tmp_path):
    searched(words, tmp_path, "ranges=engine", "trials=1")
    with pytest.raises(UserError, match=r"holds another search, .* choose another folder="):
        searched(words, tmp_path, "ranges=optim", "trials=1")


def test_a_file_of_conf_that_changes_makes_another_search(words, tmp_path, monkeypatch):
    own = tmp_path / "conf" / "optim" / "mine.yaml"
    own.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    keys = []
    for rate in (0.05, 0.5, 0.05):
        own.write_text(f"_target_: torch.optim.SGD\n_partial_: true\nlr: {rate}\n")
        keys.append(read_request([*words, "optim=mine", "ranges=engine"]).key)
    assert keys[0] == keys[2] != keys[1]


def test_a_file_that_is_no_search_is_refused(tmp_path):
    request = read_request([*WORDS, "ranges=engine", f"folder={tmp_path}"])
    (tmp_path / "study.db").write_text("this is no database at all")
    told = f"{tmp_path}/study.db cannot be opened as a search: .*: choose another folder="
    with pytest.raises(UserError, match=told):
        Search(request)


def test_a_search_that_is_torn_or_of_another_version_is_refused(tmp_path):
    request = read_request([*WORDS, "ranges=engine", f"folder={tmp_path}"])
    Search(request)
    file = tmp_path / "study.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("update alembic_version set version_num = 'v9'")
    with pytest.raises(UserError, match=r"study\.db cannot be opened as a search: The runtime"):
        Search(request)
    file.write_bytes(file.read_bytes()[:8000])
    with pytest.raises(UserError, match=r"cannot be opened as a search: .* malformed: choose"):
        Search(request)


def test_real_workers_are_searched_by_one_process(words, tmp_path):
    real = [w for w in words if not w.startswith(("backend", "profile"))]
    with hold(tmp_path / "real_workers"), pytest.raises(UserError, match="change each other's"):
        searched(real, tmp_path, "ranges=engine", "trials=1")


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_in_the_middle_of_trials_it_goes_on_with_these(
    at_once, number, code, words, tmp_path
):
    long = [*words, "ranges=optim", "objective=time_to_accuracy", "target_accuracy=0.99"]
    long = [w for w in long if not w.startswith(("max_steps", "target_accuracy=0.6"))]
    own = [*long, "max_steps=3000", f"trials={at_once}", f"folder={tmp_path}"]
    command = app.Command(*own, f"at_once={at_once}", module="experiments.tune")
    journals = [tmp_path / f"trials/000{number}/metrics.jsonl" for number in range(at_once)]
    app.wait_for(lambda: all(j.exists() and j.stat().st_size for j in journals), 60, "first rows")
    os.kill(command.pid, number)
    assert command.end(60).returncode == code
    again = Search(read_request(own))
    waiting = [t for t in again._study.get_trials() if t.state.name == "WAITING"]
    rates = [t.system_attrs["fixed_params"]["lr_scale"] for t in waiting]
    assert len(set(rates)) == at_once and 1.0 in rates
    states = [t.state.name for t in again._study.get_trials()]
    assert states == at_once * ["FAIL"] + at_once * ["WAITING"]
    assert not any(journal.parent.exists() for journal in journals)


@pytest.mark.parametrize("num_commands", [1, 2])
def test_several_processes_share_a_search(num_commands, words, tmp_path):
    own = [*words, "ranges=optim", "trials=6", f"folder={tmp_path}"]
    own += ["at_once=3"] if num_commands == 1 else []
    commands = [app.Command(*own, module="experiments.tune") for _ in range(num_commands)]
    ended = [command.end(120) for command in commands]
    assert [one.returncode for one in ended] == num_commands * [0], ended
    assert ended[0].stderr.count(" trials at a time\n") == (num_commands == 1)
    assert "step 8/8" not in ended[0].stdout or num_commands == 2
    [tuning], problems = load_tunings(tmp_path)
    assert not problems and len(tuning.trials) == 6
    assert all(trial.state in ("complete", "pruned") for trial in tuning.trials)


def test_processes_that_begin_at_once_draw_other_trials(tmp_path):
    own = read_request([*WORDS, "ranges=optim", f"folder={tmp_path}"])
    first, second, third = Search(own), Search(own), Search(own)
    assert first._values(first._study.ask()) == own.defaults
    drawn = [str(one._values(one._study.ask())) for one in (first, second, third)]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("key", ["trials", "at_once"])
def test_wrong_words_end_with_one_sentence_and_exit_code_2(key):
    ended = app.run("+algo=bytegrad", f"{key}=0", module="experiments.tune")
    assert ended.returncode == 2
    assert ended.stderr == f"error: {key} must be a whole number of at least 1, got 0\n"


def test_trials_of_real_workers_are_not_side_by_side(words, tmp_path):
    real = [w for w in words if not w.startswith(("backend", "profile"))]
    own = read_request([*real, "ranges=engine", "trials=3", "at_once=2", f"folder={tmp_path}"])
    with pytest.raises(UserError, match=r"3 of the runs measure times, .*: leave out at_once, or"):
        searchers.search(own)
    assert not (tmp_path / "study.db").exists()


def test_what_goes_on_with_a_search_may_have_other_counts(words):
    own = [
        read_request([*words, "ranges=optim", *more]) for more in ([], ["at_once=2", "trials=9"])
    ]
    assert own[0].key == own[1].key and own[0].command == own[1].command
    assert (own[0].at_once, own[1].at_once, own[0].trials, own[1].trials) == (None, 2, 30, 9)


def row(step: int, accuracy: float, time_s: float = 0.0, sent: int = 0) -> MetricsRow:
    return MetricsRow(
        kind="evaluation", step=step, time_s=time_s, accuracy=accuracy, bytes_sent=sent
    )


def test_objectives_are_numbers_of_a_runs_rows():
    rows = [row(5, 0.5, 1.0, 10), row(10, 0.9, 2.0, 20), row(20, 0.8, 5.0, 40)]
    aim = Aim(target=Target(value=0.85), at_s=1.5)
    found = {name: objective.of_rows(rows, aim) for name, objective in OBJECTIVES.items()}
    assert found == {
        "steps_per_s": 4.0,
        "time_to_accuracy": pytest.approx(1.875),
        "accuracy_at": 0.5,
        "bytes_to_accuracy": pytest.approx(18.75),
    }
    missed = Aim(target=Target(value=0.95), at_s=9.0)
    assert OBJECTIVES["time_to_accuracy"].of_rows(rows, missed) == math.inf
    assert OBJECTIVES["accuracy_at"].of_rows(rows, missed) == 0.9


def test_nothing_is_left_of_a_folder_that_cannot_be_written(words, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*: choose folder="):
        searched(words, tmp_path / "file", "ranges=engine")
    shutil.rmtree(tmp_path)
