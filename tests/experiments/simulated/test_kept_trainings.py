import importlib
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
import yaml

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.identity import plain
from experiments.runs.load import load_rows
from experiments.runs.run import run
from experiments.simulated.kept_trainings import (
    FOLDER,
    _installed,
    _made_of,
    digest_of_code,
    grouped,
    simulate_once,
)
from host.errors import UserError
from host.quiet import Quiet
from tests import app

SMALL = (
    "backend=sim",
    "cluster.stacking=vmap",
    "model=mlp",
    "workers=4",
    "batch_size=16",
    "max_steps=6",
    "eval_every=3",
    "log_every=1",
)
TIMES = ("time_s", "exposed_communication_s")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def config_of(*overrides):
    return compose_config([*SMALL, *overrides])


def record(study, name, *overrides):
    """Run it in `study`; its summary and rows."""
    assert run(config_of(*overrides), study / name, study=study) == "completed"
    return app.summary(study / name), load_rows(study / name)


def values_of(rows):
    return [{k: v for k, v in asdict(row).items() if k not in TIMES} for row in rows]


@pytest.mark.parametrize("algo", ["bytegrad", "local_sgd"])
def test_a_training_serves_another_network(algo, tmp_path):
    slow = ("cluster.straggler=1", "cluster/jitter=lognormal")
    first, rows = record(tmp_path, "first", f"algo={algo}", "net=slow_tcp")
    again, rows_again = record(tmp_path, "again", f"algo={algo}", "net=wan", *slow)
    assert (first["replayed_from"], again["replayed_from"]) == (None, "first")
    assert again["net"] == "wan"
    assert values_of(rows_again) == values_of(rows)
    for name in ("final_accuracy", "validation_accuracy", "spread", "steps"):
        assert again[name] == first[name]
    # As if it had been trained there, by the same profile.
    profile = f"profile={tmp_path / 'first' / 'profile.yaml'}"
    alone, rows_alone = record(tmp_path, "alone", f"algo={algo}", "net=wan", profile, *slow)
    assert alone["replayed_from"] is None
    assert values_of(rows_again) == values_of(rows_alone)
    for name in TIMES:
        times = [getattr(row, name) for row in rows_alone]
        assert [getattr(row, name) for row in rows_again] == pytest.approx(times)
    assert again["steps_per_s"] == pytest.approx(alone["steps_per_s"])


def test_a_network_that_lets_nothing_through_is_told_of_where_clocks_run_alone(tmp_path):
    record(tmp_path, "first", "algo=allreduce", "net=slow_tcp")
    with pytest.raises(UserError, match="never ends: a link that it needs is down for ever"):
        run(config_of("algo=allreduce", "net.loss_pct=100"), tmp_path / "cut", study=tmp_path)
    summary = app.summary(tmp_path / "cut")
    assert (summary["status"], summary["replayed_from"]) == ("failed", "first")


@pytest.mark.parametrize(
    "other",
    [
        ("algo=async",),  # its values depend on timing
        ("algo=bytegrad", "seed=1"),
        ("algo=bytegrad", "lr_scale=2"),
        ("algo=bytegrad", "checkpoint_every=3"),
    ],
)
def test_what_changes_values_is_trained(other, tmp_path):
    record(tmp_path, "first", "algo=bytegrad" if "async" not in other[0] else other[0])
    summary, _ = record(tmp_path, "other", *other, "net=wan")
    assert summary["replayed_from"] is None


def test_a_training_serves_workers_of_another_profile(tmp_path):
    _, rows = record(tmp_path, "first", "algo=bytegrad")
    values = yaml.safe_load((tmp_path / "first" / "profile.yaml").read_text())
    values["forward_s"] *= 3
    for job in values["jobs"]:
        job["kernels_s"] = [5 * kernel_s + 1e-3 for kernel_s in job["kernels_s"]]
    (tmp_path / "slower.yaml").write_text(yaml.safe_dump(values))
    faster, slower = (
        ("algo=bytegrad", "net=none", f"profile={tmp_path / name}")
        for name in ("first/profile.yaml", "slower.yaml")
    )
    assert record(tmp_path, "given", *faster)[0]["replayed_from"] is None  # the first measured its
    again, rows_again = record(tmp_path, "again", *slower)
    assert again["replayed_from"] == "given"
    alone, rows_alone = record(tmp_path / "apart", "alone", *slower)
    assert alone["replayed_from"] is None
    assert values_of(rows_again) == values_of(rows_alone) == values_of(rows)
    for name in TIMES:
        times = [getattr(row, name) for row in rows_alone]
        assert [getattr(row, name) for row in rows_again] == pytest.approx(times)
    assert again["steps_per_s"] == pytest.approx(alone["steps_per_s"])
    assert again["steps_per_s"] < 0.95 * app.summary(tmp_path / "given")["steps_per_s"]


def test_workers_of_other_nodes_are_trained(tmp_path):
    local = ("algo=local_sgd", "algo.hierarchical=true")
    record(tmp_path, "first", *local, "net=two_sites")
    summary, _ = record(tmp_path, "fours", *local, "net=two_sites", "net.nodes.size=4")
    assert summary["replayed_from"] is None
    summary, _ = record(tmp_path, "slower", *local, "net=two_sites", "net.rate_mbit=20")
    assert summary["replayed_from"] == "first"


def test_a_training_that_cannot_be_read_is_made_again(tmp_path):
    record(tmp_path, "first", "algo=bytegrad")
    (kept,) = (tmp_path / FOLDER).iterdir()
    whole = kept.read_bytes()
    older = b"cexperiments.simulated.kept_trainings\nWhatWasRenamed\n."
    contents = {"torn": whole[:1000], "empty": b"", "older": older, "foreign": b"profile: 1\n"}
    for name, content in contents.items():
        kept.write_bytes(content)
        summary, _ = record(tmp_path, name, "algo=bytegrad", "net=wan")
        assert summary["replayed_from"] is None
    summary, _ = record(tmp_path, "last", "algo=bytegrad", "net=lan_1g")
    assert summary["replayed_from"] == "foreign"


def test_a_training_that_diverged_serves_nobody(tmp_path):
    config = config_of("algo=allreduce", "lr_scale=1e30")
    assert run(config, tmp_path / "one", study=tmp_path) == "diverged"
    plan = make_plan(config, tmp_path / "two")
    assert simulate_once(plan, plain(config), tmp_path, Quiet(tmp_path))[1] is None


def test_code_that_makes_times_or_reports_of_values_may_change(tmp_path):
    def digest_after(change):
        file = tmp_path / change
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(change)
        return digest_of_code.__wrapped__(tmp_path)

    before = digest_after("experiments/training/step.py")
    assert digest_after("netsim/timeline/patterns.py") == before
    assert digest_after("experiments/report/pages.py") == before
    for change in ("experiments/tasks/base.py", "bagua_algos/engine/engine.py", "kernels/cast.py"):
        after = digest_after(change)
        assert after != before
        before = after


def test_code_of_ones_own_is_trained_every_time(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from bagua_algos import AllReduce\nclass Mine(AllReduce):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("algo=allreduce", "algo._target_=mine.Mine")
    record(tmp_path, "first", *words)
    assert record(tmp_path, "second", *words, "net=wan")[0]["replayed_from"] is None


def test_a_file_that_has_changed_is_trained_again(tmp_path):
    text = tmp_path / "corpus.txt"
    words = ("algo=allreduce", "task=text", f"task.path={text}", "task.context=32")
    words += ("model=char_transformer", "+model.num_classes=256", "batch_size=2")
    for name, letters, served in (("a", "abc", None), ("b", "abc", "a"), ("c", "xyz", None)):
        if name != "b":
            text.write_text(3000 * letters)
        found = record(tmp_path, name, *words, f"net={'wan' if name == 'b' else 'slow_tcp'}")
        assert found[0]["replayed_from"] == served


def with_parts(**parts):
    """What a configuration that has these parts is made of."""
    return _made_of({**plain(config_of("algo=allreduce")), **parts})


@pytest.mark.parametrize(
    "part",
    [
        {"task": {"root": "data"}},
        {"task": {"train": {"pattern": "data/train/cat/*.tar"}}},
        {"model": {"_target_": "torch.nn.Linear", "weights": "data"}},
    ],
    ids=str,
)
def test_files_below_a_folder_and_those_of_a_pattern_are_looked_at(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train/cat/0.tar", "train/dog/1.tar"):
        file = tmp_path / "elsewhere" / name
        file.parent.mkdir(parents=True)
        file.write_text("as it was")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "elsewhere" / "train")
    (tmp_path / "elsewhere" / "train" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere" / "train" / "gone").symlink_to(tmp_path / "nothing")
    before = with_parts(**part)
    assert before is not None and with_parts(**part) == before
    (tmp_path / "data" / "train" / "dog" / "1.tar").rename(tmp_path / "data/train/cat/1.tar")
    moved = with_parts(**part)
    (tmp_path / "data" / "train" / "cat" / "0.tar").write_text("other")
    assert len({before, moved, with_parts(**part)}) == 3


def test_another_version_of_an_installed_package_is_trained_again(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "theirs" / "__init__.py"
    package.parent.mkdir(parents=True)
    monkeypatch.syspath_prepend(package.parents[1])
    found = []
    for time_s in (1, 1, 2):
        package.write_text("")
        os.utime(package, (time_s, time_s))
        _installed.cache_clear()  # another command's
        found.append(with_parts(model={"_target_": "theirs.Net"}))
    assert found[0] == found[1] != found[2] and None not in found


def test_one_of_an_index_counts_by_its_version_alone(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "theirs" / "__init__.py"
    about = tmp_path / "site-packages" / "theirs-1.dist-info"
    package.parent.mkdir(parents=True)
    about.mkdir()
    (about / "top_level.txt").write_text("theirs\n")
    monkeypatch.syspath_prepend(package.parents[1])
    found = []
    for number, time_s in (("1", 1), ("1", 2), ("2", 2)):
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirs\nVersion: {number}\n")
        package.write_text("")
        os.utime(package, (time_s, time_s))
        importlib.invalidate_caches()
        _installed.cache_clear()
        found.append(_installed("theirs"))
    assert found[0] == found[1] != found[2]


def test_odd_names_and_links_in_a_data_folder_hide_no_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    (folder / os.fsdecode(b"\xff.png")).write_text("a")
    before = with_parts(task={"root": "data"})
    assert before is not None
    (folder / os.fsdecode(b"\xff.png")).write_text("other")
    assert with_parts(task={"root": "data"}) not in (before, None)
    (folder / "loop").symlink_to(folder / "loop")
    assert with_parts(task={"root": "data"}) is None


@pytest.mark.parametrize("named", [{"path": "mine.pair"}, {"_args_": ["mine.pair"]}], ids=str)
def test_a_function_of_ones_own_that_hydra_looks_up_is_own_code(named, tmp_path):
    task = {"_target_": "experiments.tasks.own.dataset.DatasetTask"}
    found = {"_target_": "hydra.utils.get_method", **named}
    assert with_parts(task={**task, "collate": found}) is None
    found = {"_target_": "hydra.utils.get_method", "path": "torch.stack"}
    assert with_parts(task={**task, "collate": found}) is not None


def test_another_process_finds_the_same_trainings():
    code = (
        "from experiments.simulated.kept_trainings import digest_of_code; print(digest_of_code())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert other.stdout.strip() == digest_of_code()


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (["algo=bytegrad"], [[0, 1]]),
        (["algo=async"], [[0], [1]]),  # its values depend on the network
        (["algo=bytegrad", "checkpoint_every=2"], [[0], [1]]),
        (["algo=bytegrad", "resume=outputs/run"], [[0], [1]]),
        (["algo=bytegrad", "++algo._target_=a_stranger.Own"], [[0, 1]]),
        (["algo=bytegrad", "++algo._target_=bagua_algos.gone.Own"], [[0, 1]]),
    ],
)
def test_runs_that_one_training_serves_are_grouped(words, groups):
    """The others would only wait for each other."""
    assert grouped([plain(config_of(*words, f"net={net}")) for net in ("wan", "lan_1g")]) == groups
