"""Runs of settings: one training serves all networks, and what is done is left out."""

from pathlib import Path

import pytest

from experiments.advise.tuning import settings_runs
from experiments.advise.tuning.settings_runs import SettingRun, fitting_here, run_all, runs_of
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from experiments.runs import side_by_side
from experiments.runs.folder_lock import hold
from experiments.simulated.memory import fitting as memory
from host.errors import Failure, UserError
from tests import app

COMMON = (
    *("backend=sim", "model=mlp", "workers=2", "batch_size=4", "max_steps=2", "eval_every=1"),
    "cluster.stacking=vmap",
)
SETTINGS = {"a": ["algo=allreduce lr_scale=2.0"], "b": ["algo=local_sgd algo.interval=2 net=wan"]}


def test_each_setting_runs_on_its_networks_by_one_training(tmp_path: Path, capsys):
    runs = list(runs_of(SETTINGS, COMMON, ["none", "slow_tcp"], [3, 4]))
    found = [(run.config["names"]["net"], run.config["seed"]) for run in runs]
    on_both = [(net, seed) for seed in (3, 4) for net in ("none", "slow_tcp")]
    assert found == [*on_both, ("wan", 3), ("wan", 4)]
    assert runs[1].config["net"]["rate_mbit"] == 100
    run_all(runs[:2], tmp_path)
    first, other = (app.summary(tmp_path / run.name) for run in runs[:2])
    assert (first["replayed_from"], other["replayed_from"]) == (None, runs[0].name)
    assert other["validation_loss"] == first["validation_loss"]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("summary.json")}
    said = [line.partition("; ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["2 runs, 2 to do", "run 1 of 2", "run 2 of 2"]
    run_all(runs[:2], tmp_path)
    assert capsys.readouterr().err == "2 runs, 0 to do\n"
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("summary.json")}


def test_trainings_side_by_side_come_to_the_same_and_serve_their_networks(tmp_path, capfd):
    runs = list(runs_of(SETTINGS, COMMON, ["none", "slow_tcp"], [3, 4]))
    refused = list(runs_of({"c": ["algo=qsgd batch_size=100000"]}, COMMON, ["none"], [3]))
    with (
        hold(tmp_path / runs[-1].name),
        pytest.raises(Failure, match=r"^1 run failed.* c_none_s3_"),
    ):
        run_all([*runs, *refused], tmp_path, at_once=2)
    out, err = capfd.readouterr()
    said = [line.partition("; ")[0] for line in err.splitlines()]
    begun = ["7 runs, 7 to do", "7 runs, 2 at a time"]
    done = [line for line in said if " % done" not in line]
    assert done[:2] == begun and len(done) == 7 and done[-1] == "7 of 7 runs are done"
    told = out.split("completed\n")  # of each run in one piece, and nothing of its evaluations
    assert told.pop() == "" and len(told) == 5
    assert all(text.count("\n") in (1, 2) and str(tmp_path) in text for text in told)
    assert not (tmp_path / runs[-1].name / "summary.json").exists()
    run_all(runs, tmp_path, at_once=2)
    found = [app.summary(tmp_path / run.name) for run in runs]
    trained = [None, runs[0].name, None, runs[2].name, None, None]
    assert [summary["replayed_from"] for summary in found] == trained
    run_all(runs[:1], tmp_path / "alone")
    alone = app.summary(tmp_path / "alone" / runs[0].name)
    assert alone["validation_loss"] == found[0]["validation_loss"]


def test_as_many_run_at_once_as_cores_and_memory_are_for(tmp_path: Path, monkeypatch):
    runs = list(runs_of(SETTINGS, COMMON, ["none"], [3]))
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 8)
    monkeypatch.setattr(side_by_side, "jobs_at_once", lambda config: 8)
    fits = {"allreduce": 6, "local_sgd": 5}
    monkeypatch.setattr(memory, "fitting_alone", lambda plan: fits[plan.names["algo"]])
    assert fitting_here(runs, tmp_path) == 5
    run_all(runs[1:], tmp_path)
    assert fitting_here(runs, tmp_path) == 6
    real = list(runs_of(SETTINGS, [*COMMON[1:], "backend=gloo"], ["none"], [3]))
    monkeypatch.undo()
    assert fitting_here(real, tmp_path) == 1
    with pytest.raises(UserError, match=r"2 of the runs measure times.* set --at-once 1, or"):
        run_all(real, tmp_path, at_once=2)


def test_what_another_process_has_run_counts_as_done(tmp_path: Path, capsys, monkeypatch):
    runs = list(runs_of(SETTINGS, COMMON, ["none"], [3, 4, 5]))[:3]

    def run_with_another(one: SettingRun, root: Path) -> str:
        for folder in (one.name, runs[2].name):
            (root / folder).mkdir(exist_ok=True)
        return "completed"

    monkeypatch.setattr(settings_runs, "_run", run_with_another)
    run_all(runs, tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("; ")[0] for line in said] == [
        *("3 runs, 3 to do", "run 2 of 3", "run 3 of 3")
    ]


def test_each_run_is_the_one_that_its_words_make():
    settings = {
        "a": [
            "algo=allreduce net.rate_mbit=20",
            "algo=decentralized algo.topology=random_matching",
        ],
        "b": ["algo=local_sgd net=slow_tcp net.rate_mbit=30 profile='profiles/${names.net}.yaml'"],
    }
    common = (*COMMON, "cluster.jitter=lognormal")
    runs = list(runs_of(settings, common, ["none", "wan"], [3, 4]))
    assert len(runs) == 10
    for run in runs:
        assert run.config == plain(compose_config(run.words))
    assert {run.config["cluster"]["jitter"]["seed"] for run in runs} == {3, 4}
    assert {run.config["net"]["rate_mbit"] for run in runs} == {20, None, 100, 30}
    assert runs[-1].config["profile"] == "profiles/slow_tcp.yaml"


def test_words_of_all_runs_may_be_of_the_settings_own_choices():
    settings = {"a": ["algo=qsgd optim=adamw"], "b": ["algo=bytegrad optim=adamw"]}
    own = ("algo.error_feedback=true", "optim.eps=0.1")
    for run in runs_of(settings, [*COMMON, *own], ["none", "wan"], [0]):
        assert run.config == plain(compose_config(run.words))
        assert run.config["algo"]["error_feedback"] is True


def test_a_run_that_is_refused_fails_in_the_end_and_one_that_is_held_is_left(tmp_path: Path):
    settings = {"a": ["algo=allreduce batch_size=100000"]}
    [refused] = runs_of(settings, COMMON, ["none"], [0])
    with pytest.raises(Failure, match=r"1 run failed, the first one: a_none_s0_.* was refused: "):
        run_all([refused], tmp_path)
    with hold(tmp_path / refused.name):
        run_all([refused], tmp_path)
