"""The command line: what it accepts, and how it refuses."""

import re
import subprocess

import pytest

from experiments.__main__ import divided
from experiments.plan.messages import choices
from experiments.plan.schema import GROUPS
from experiments.runs.load import load_rows
from tests import app


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "algo is missing: choose algo=allreduce, "),
        (["+algo=nope"], "there is no algo named 'nope': choose algo=allreduce"),
        (
            ["algo=top_k", "optim=adam", "optim.betas.a=1"],
            "'a' is no place in a list: write the whole list",
        ),
        (["algo=bytegrad", "net=nope"], "there is no net named 'nope': choose net=cellular"),
        (
            ["algo=bytegrad", "task=nope"],
            "there is no task named 'nope': choose task=cifar10",
        ),
        (["algo=bytegrad", "foo=1"], "there is no key 'foo': --cfg job shows"),
        (["algo=bytegrad", "wokers=2"], "there is no key 'wokers': did you mean workers?"),
        (["algo=bytegrad", "algo.eror_feedback=1"], "did you mean algo.error_feedback?"),
        (
            ["algo=bytegrad", "model=char_transformer", "model.num_classes=3"],
            "write +model.num_classes=VALUE",
        ),
        (["algo=bytegrad", "workers=0"], "workers must be at least 1, got 0"),
        (["algo=bytegrad", "workers=four"], "workers takes a whole number, not 'four'"),
        (["algo=bytegrad", "clip_norm=x"], "clip_norm takes a number or null, not 'x'"),
        (["algo=bytegrad", "trace=maybe"], "trace takes true or false, not 'maybe'"),
        (["algo=bytegrad", "target.loss=low"], "target.loss takes a number or null, not 'low'"),
        (["algo=bytegrad", "max_steps"], "'max_steps' is no KEY=VALUE: write max_steps=VALUE"),
        (["bytegrad"], "'bytegrad' is no KEY=VALUE: did you mean algo=bytegrad?"),
        (["algo=bytegrad", "workers=2,3"], "workers=2,3 has several values: with -m each is run"),
        (["algo=bytegrad", "--workers", "2"], "no option --workers: write workers=VALUE"),
        (["algo=bytegrad", "--multirn"], "there is no option --multirn: did you mean --multirun?"),
        (
            ["algo=bytegrad", "workers=40", "batch_size=100"],
            "3500 training examples do not fill one batch",
        ),
        (["algo=bytegrad", "net.rate_mbit=-5"], "rate_mbit has to be a finite number from 0 up"),
        (["algo=bytegrad", "target_accuracy=1.5"], "target_accuracy must be a fraction in (0, 1]"),
        (["algo=bytegrad", "optim.lr=-1"], "optim.lr must be at least 0 and finite, got -1"),
        (["algo=bytegrad", "model=bigru"], "model=bigru does not take examples of task=mnist5k"),
        (
            ["algo=bytegrad", "+model.num_classes=7"],
            "has 7 outputs for each label, and task=mnist5k has 10 classes",
        ),
        (
            ["algo=bytegrad", "task=fashion_mnist", "task.root=/nonexistent"],
            "dataset-fashion-mnist",
        ),
        (["algo=choco_sgd", "algo.topology=[1]"], "algo.topology=[1] is no choice: choose algo."),
        (["algo=bytegrad", "cluster.jitter=5"], "cluster.jitter=5 is no choice: choose cluster."),
        (["algo=bytegrad", "++cluster.jitter=5"], "must be one of its choices or null, got 5"),
        (["algo=bytegrad", "names.algo=${nowhere}"], "names.algo=${nowhere} names no key: "),
        (["algo=bytegrad", "net=null"], "net=null is no choice: choose net=cellular"),
        (["algo=bytegrad", "optim._partial_=2"], "optim._partial_ must be true or false, got 2"),
        (["algo=bytegrad", "optim.momentum=x"], "optim.momentum takes a number, not 'x'"),
        (["algo=bytegrad", "profile=ü"], "put quotes around a value with blanks"),
        (["algo=bytegrad", "hydra.run.dir=/proc/none"], "choose another hydra.run.dir=..."),
    ],
)
def test_bad_input_is_refused_with_one_sentence(tmp_path, arguments, sentence):
    where = [f"hydra.run.dir={tmp_path / 'run'}"]
    ended = app.run(*where, *arguments)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert sentence in ended.stderr
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []  # no folder is left for a run that never was


def test_options_may_stand_after_other_words():
    words = ["algo=bytegrad", "-m", "net=wan,lossy", "--cfg", "job", "seed=1"]
    assert divided(words) == (
        ["-m", "--cfg", "job"],
        ["algo=bytegrad", "net=wan,lossy", "seed=1"],
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--info", "algo=bytegrad", "seed=1"], ["--info=all"]),
        (["algo=bytegrad", "-i", "seed=1"], ["--info=all"]),
        (["algo=bytegrad", "seed=1", "--info"], ["--info=all"]),
        (["algo=bytegrad", "--info", "-m", "seed=1"], ["--info=all", "-m"]),
        (["algo=bytegrad", "--info", "defaults", "seed=1"], ["--info", "defaults"]),
        (["algo=bytegrad", "seed=1", "--info=defaults"], ["--info=defaults"]),
    ],
)
def test_info_may_stand_anywhere_with_and_without_a_choice(words, options):
    assert divided(words) == (options, ["algo=bytegrad", "seed=1"])


def test_info_is_printed_wherever_it_stands():
    ended = app.run("algo=bytegrad", "--info", "defaults")
    assert ended.returncode == 0, ended.stderr
    assert "Defaults List" in ended.stdout


def test_a_folder_that_has_a_run_is_refused_and_kept(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    ended = app.run("algo=bytegrad", f"hydra.run.dir={tmp_path}")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"error: {tmp_path} already holds a run: choose another hydra.run.dir=... or delete it.\n"
    )
    assert (tmp_path / "summary.json").read_text() == "{}"


def test_help_names_every_choice():
    ended = app.run("--help")
    assert ended.returncode == 0
    for group in (*GROUPS, "experiment"):
        [named] = re.findall(rf"^  {group} +(\S.*)$", ended.stdout, re.MULTILINE)
        assert named.split(", ") == choices(group)


@pytest.mark.root
def test_a_sweep_runs_every_combination_and_records_what_it_did(tmp_path):
    ended = app.run(
        *("-m", "+algo=allreduce,bytegrad", "net=none", "workers=2", "max_steps=6", "eval_every=3"),
        *("log_every=2", "batch_size=8", "target_accuracy=0.01", f"hydra.sweep.dir={tmp_path}"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folders = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())
    records = [app.summary(folder) for folder in folders]
    assert [record["algo"] for record in records] == ["allreduce", "bytegrad"]
    for folder, record in zip(folders, records, strict=True):
        assert record["status"] == "completed"
        assert record["steps"] == 6
        assert record["workers"] == 2
        assert 0 < record["time_to_accuracy_s"] < record["duration_s"]
        assert 0.05 < record["final_accuracy"] <= 1
        assert 0 < record["final_loss"] < 10 and 0 < record["validation_loss"] < 10
        evaluations = [row for row in load_rows(folder) if row.is_evaluation]
        assert evaluations[-1].validation_loss == record["validation_loss"]
        assert record["exposed_communication_s"] > 0
        assert record["achieved_rate_mbit"] > 100
        assert {"config.yaml", "environment.json", "metrics.parquet"} <= {
            file.name for file in folder.iterdir()
        }
    # A quarter of the bytes, and the headers of small messages.
    ratio = records[1]["bytes_sent_per_worker"] / records[0]["bytes_sent_per_worker"]
    assert 0.25 < ratio < 0.35


@pytest.mark.root
def test_the_run_stops_at_its_target_if_asked(tmp_path):
    ended = app.run(
        *("algo=allreduce", "net=none", "workers=1", "max_steps=50", "eval_every=5"),
        *("target_accuracy=0.01", "stop_at_target=true", f"hydra.run.dir={tmp_path}"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert app.summary(tmp_path)["steps"] == 5


def test_without_namespaces_the_run_is_refused(tmp_path):
    """A user namespace in which the kernel grants no network namespace."""
    command = (
        "echo 0 > /proc/sys/user/max_net_namespaces && "
        f"exec {' '.join(app.COMMAND)} algo=allreduce hydra.run.dir={tmp_path / 'run'}"
    )
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", command],
        cwd=app.ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if ended.stderr.startswith("unshare:"):
        pytest.skip(f"this host has no user namespaces: {ended.stderr}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "namespaces" in ended.stderr
    assert ended.stderr.count("\n") == 1
