import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.plan.identity import identity
from experiments.runs import folder_lock
from experiments.runs.folder_lock import hold, is_held
from experiments.runs.load import load_runs
from experiments.runs.study import (
    RunsFailed,
    Standing,
    StudyRun,
    Sweep,
    find_records,
    read_record,
)
from experiments.runs.summary import CTRL_C, NOT_ENDED
from host.errors import UserError
from tests import app
from tests.once import made_once

QUICK = (
    "backend=sim",
    "model=mlp",
    "model.hidden=[16]",
    "workers=2",
    "max_steps=4",
    "eval_every=2",
    "log_every=1",
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The override by which none of the runs here measures its own."""

    def rehearse(folder: Path) -> None:
        assert app.run("algo=allreduce", *QUICK, f"hydra.run.dir={folder / 'run'}").returncode == 0

    return f"profile={made_once(tmp_path_factory, 'profiled', rehearse) / 'run' / 'profile.yaml'}"


def leave(folder: Path, status: str, reason: str | None, config="seed: 0\n") -> Path:
    """A run's folder as it is left."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "summary.json").write_text(
        json.dumps({"algo": "allreduce", "status": status, "reason": reason})
    )
    return folder


@pytest.mark.parametrize(
    ("status", "reason", "standing"),
    [
        ("completed", None, Standing.DONE),
        ("diverged", "the loss is nan at step 3", Standing.DONE),
        ("failed", "worker 2 was killed by SIGKILL", Standing.FAILED),
        ("failed", NOT_ENDED, Standing.INTERRUPTED),
        ("failed", CTRL_C, Standing.INTERRUPTED),
    ],
)
def test_how_far_a_run_has_come(tmp_path, status, reason, standing):
    folder = leave(tmp_path / "run", status, reason)
    record = read_record(folder, is_held=False)
    assert (record.standing, record.status, record.reason) == (standing, status, reason)


def test_a_folder_of_which_half_is_gone_reads_as_interrupted(tmp_path):
    folder = leave(tmp_path / "run", "failed", "worker 2 died")
    (folder / "summary.json").unlink()
    assert read_record(folder, is_held=False).standing is Standing.INTERRUPTED
    assert read_record(folder, is_held=True).standing is Standing.RUNNING
    (folder / "config.yaml").unlink()
    assert read_record(folder, is_held=False) is None


def test_a_run_is_found_by_its_configuration_wherever_it_is(tmp_path):
    leave(tmp_path / "a" / "deep", "failed", "worker 2 died", "seed: 1\n")
    done = leave(tmp_path / "b", "completed", None, "seed: 1\n")
    leave(tmp_path / "c", "failed", NOT_ENDED, "seed: 2\n")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.yaml").write_bytes(b"\xff\xfe")
    found = find_records(tmp_path)
    assert found.keys() == {identity("seed: 1\n"), identity("seed: 2\n")}
    assert found[identity("seed: 1\n")].folder == done


def job(config: str) -> StudyRun:
    return StudyRun(overrides=(config,), identity=identity(config), needs_host=False)


def test_what_is_to_be_done(tmp_path, capsys):
    jobs = [job(f"seed: {seed}\n") for seed in range(5)]
    leave(tmp_path / "0", "completed", None, "seed: 0\n")
    failed = leave(tmp_path / "1", "failed", "worker 2 died", "seed: 1\n")
    killed = leave(tmp_path / "2", "failed", NOT_ENDED, "seed: 2\n")
    running = leave(tmp_path / "3", "failed", NOT_ENDED, "seed: 3\n")
    with hold(running):
        assert Sweep(tmp_path, jobs).begin(retry_failed=False) == [jobs[2], jobs[4]]
        printed = capsys.readouterr().out
        assert "5 runs, 1 done, 1 running elsewhere, 1 failed, 2 to do" in printed
        assert f"failed: {failed}: worker 2 died" in printed
        assert not killed.exists() and running.exists() and failed.exists()
        todo = Sweep(tmp_path, jobs).begin(retry_failed=True)
    assert todo == [jobs[1], jobs[2], jobs[4]]
    assert not failed.exists()


def test_a_study_of_which_a_run_failed_says_so(tmp_path):
    leave(tmp_path / "1", "failed", "worker 2 died", "seed: 1\n")
    with pytest.raises(RunsFailed, match="not all runs are done"):
        Sweep(tmp_path, [job("seed: 1\n")]).end()
    leave(tmp_path / "2", "diverged", "the loss is nan", "seed: 2\n")
    Sweep(tmp_path, [job("seed: 2\n")]).end()


@pytest.mark.parametrize(
    ("num_refused", "said"),
    [
        (0, "the same command goes on with them"),
        (1, "1 run was refused and needs other words, the same command goes on with the others"),
        (2, "2 runs were refused and need other words"),
    ],
)
def test_a_study_says_what_becomes_of_runs_that_were_refused(num_refused, said, tmp_path):
    leave(tmp_path / "0", "completed", None, "seed: 0\n")
    jobs = [job(f"seed: {seed}\n") for seed in range(3)]
    with pytest.raises(RunsFailed, match=f"^not all runs are done: {said}$"):
        Sweep(tmp_path, jobs).end(num_refused=num_refused)


def test_a_folder_is_held_by_one_process(tmp_path):
    folder = tmp_path / "run"
    with hold(folder):
        assert is_held(folder)
        with pytest.raises(UserError, match="is being run by another process"), hold(folder):
            pass
    assert not is_held(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_was_killed_holds_no_longer(tmp_path):
    code = (
        "import os, pathlib, signal\nfrom experiments.runs.folder_lock import hold\n"
        f"with hold(pathlib.Path({str(tmp_path / 'run')!r})):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=app.ROOT, check=False)
    assert (tmp_path / ".run.lock").exists()
    assert not is_held(tmp_path / "run")
    assert not (tmp_path / ".run.lock").exists()


def test_the_lock_of_another_user_is_looked_at(tmp_path, monkeypatch):
    """Who holds it, or was killed; nobody else may write it."""
    folder, lock = tmp_path / "run", tmp_path / ".run.lock"
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.0)
    monkeypatch.setattr(folder_lock.os, "access", lambda *_: False)
    with hold(folder):
        assert is_held(folder)
    lock.touch()
    monkeypatch.setattr(Path, "unlink", refuse)
    assert not is_held(folder)


def refuse(path: Path, **_: object) -> None:
    raise PermissionError(path)


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."}


def test_the_same_command_runs_what_is_not_done(tmp_path, profile):
    command = ("-m", "algo=allreduce", "seed=0,1", *QUICK, profile, f"hydra.sweep.dir={tmp_path}")
    ended = app.run(*command)
    assert ended.returncode == 0, ended.stderr
    assert "2 runs, 2 to do" in ended.stdout
    first, second = sorted(folders(tmp_path))
    ended = app.run(*command, "seed=0,1,2", "optim.lr=0.05,0.1")
    assert "6 runs, 2 done, 4 to do" in ended.stdout, ended.stdout + ended.stderr
    assert len(folders(tmp_path)) == 6
    assert {first, second} <= folders(tmp_path)


def test_a_run_that_another_process_has_begun_is_left_to_it(tmp_path, profile):
    command = ("-m", "algo=allreduce", "seed=0", *QUICK, profile, f"hydra.sweep.dir={tmp_path}")
    assert app.run(*command).returncode == 0
    [name] = folders(tmp_path)
    shutil.rmtree(tmp_path / name)
    with hold(tmp_path / name):
        ended = app.run(*command)
    assert ended.returncode == 1
    assert f"left: {tmp_path / name} is being run by another process" in ended.stdout
    assert "not all runs are done" in ended.stderr
    assert folders(tmp_path) <= {name}


def test_folders_are_named_as_the_command_line_says(tmp_path, profile):
    name = "hydra.sweep.subdir=${hydra:runtime.choices.algo}_${seed}"
    ended = app.run(
        "-m", "algo=allreduce", "seed=3", *QUICK, profile, f"hydra.sweep.dir={tmp_path}", name
    )
    assert ended.returncode == 0, ended.stderr
    [folder] = folders(tmp_path)
    assert folder.startswith("allreduce_3_")


def test_a_run_that_failed_is_listed_and_run_again_on_request(tmp_path, profile):
    command = ("-m", "algo=allreduce", "seed=0", *QUICK, profile, f"hydra.sweep.dir={tmp_path}")
    assert app.run(*command).returncode == 0
    (name,) = folders(tmp_path)
    folder = tmp_path / name
    made_up = app.summary(folder) | {"status": "failed", "reason": "worker 1 died"}
    (folder / "summary.json").write_text(json.dumps(made_up))
    ended = app.run(*command)
    assert ended.returncode == 1
    assert f"failed: {folder}: worker 1 died" in ended.stdout
    assert "hydra.sweeper.retry_failed=true" in ended.stdout
    ended = app.run(*command, "hydra.sweeper.retry_failed=true")
    assert ended.returncode == 0, ended.stderr
    assert app.summary(folder)["status"] == "completed"


def test_a_sweep_that_cannot_begin_is_refused_with_one_sentence(tmp_path):
    ended = app.run(
        "-m",
        "algo=allreduce",
        "seed=0,1",
        "workers=40",
        "batch_size=100",
        f"hydra.sweep.dir={tmp_path}",
    )
    assert ended.returncode == 2
    assert ended.stderr.count("do not fill one batch") == 1
    assert folders(tmp_path) == set()


def test_a_sweep_of_which_a_run_is_refused_says_that_it_needs_other_words(tmp_path, profile):
    command = ("-m", "algo=allreduce", *QUICK, profile, f"hydra.sweep.dir={tmp_path}")
    ended = app.run(*command, "batch_size=32,100000")
    assert ended.returncode == 1 and "\nrefused: " in ended.stdout
    assert ended.stderr.endswith("1 run was refused and needs other words\n")
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=glob(zzz*)"], r"algo=glob\(zzz\*\) matches none of allreduce, "),
        (["algo=allreduce", "seed=range(1,1)"], r"seed=range\(1,1\) has no value: give one at"),
        (["algo=allreduce", "seed=glob(*)"], r"seed=glob\(\*\) has no value: give one at"),
        (["algo=allreduce", "+lr=0.5,1"], "there is no key 'lr': "),
        (["algo=allreduce,1"], "algo=1 is no choice: choose algo=allreduce, "),
    ],
)
def test_a_sweep_of_nothing_and_of_no_key_is_refused_with_one_sentence(tmp_path, words, said):
    ended = app.run("-m", *words, f"hydra.sweep.dir={tmp_path}")
    assert ended.returncode == 2 and ended.stdout == ""
    assert re.match(rf"^error: {said}.*\n$", ended.stderr)
    assert folders(tmp_path) == set()


@pytest.mark.slow
def test_a_sweep_killed_again_and_again_makes_the_same_runs(tmp_path, profile):
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    sweep = ["algo=allreduce", "net=lan_1g,wan", "seed=0,1", *QUICK, "max_steps=30"]
    where = [str(calm), str(disturbed)]
    arguments = ("7", "8", *where, *sweep, profile)
    ended = app.run(*arguments, module="tests.experiments.sweeps", limit_s=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(folders(calm)) == 4
    assert folders(disturbed) == folders(calm)
    assert facts(disturbed) == facts(calm)
    assert not list(disturbed.glob(".*.lock"))


def facts(root: Path) -> dict[str, tuple]:
    """Of each run what does not depend on how long it took."""
    runs = load_runs(root)
    assert runs.attrs["problems"] == []
    assert set(runs.status) == {"completed"}
    columns = ["net", "seed", "steps", "final_accuracy", "bytes_sent_per_worker", "steps_per_s"]
    return {Path(run.folder).name: tuple(run[columns]) for _, run in runs.iterrows()}
