"""What the simulated runs of a study measure once for all of them."""

import os
import time
from contextlib import closing

import pytest
import torch
import yaml

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.run import run
from experiments.simulated import simulate
from experiments.simulated.known import PROFILES_FOLDER, KnownMeasurements
from experiments.simulated.profile import Profile
from experiments.simulated.stacking import StackingChoice
from host.processes import fork
from host.quiet import Quiet
from tests import app

SMALL = (
    *("backend=sim", "cluster.stacking=vmap", "model=mlp", "workers=2", "batch_size=8"),
    *("max_steps=2", "eval_every=2"),
)
FOUND = StackingChoice(way="loop", threads=1, seconds={"loop": 1.0}, refused={})
VMAP = StackingChoice(way="vmap", threads=1, seconds={"vmap": 1.0}, refused={})


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def plan_of(folder, *overrides):
    words = ("algo=bytegrad", "backend=sim", "model=mlp", "workers=2", "net=slow_tcp")
    return make_plan(compose_config([*words, *overrides]), folder)


def known(study, model_and_task=None, step=None):
    return KnownMeasurements(study, Quiet(study), model_and_task=model_and_task, step=step)


def test_a_study_measures_ways_once_and_knows_each_model(tmp_path):
    own, plan = known(tmp_path), plan_of(tmp_path)
    assert own.known_way(plan) is None
    own.remember_way(plan, FOUND)
    own.remember_way(plan, VMAP)
    assert own.known_way(plan) == "loop"
    assert own.known_way(plan_of(tmp_path, "model.hidden=[8]")) is None


def test_a_way_that_is_asked_for_is_taken_and_told_to_nobody(tmp_path):
    own = known(tmp_path)
    own.remember_way(plan_of(tmp_path), FOUND)
    asking = plan_of(tmp_path, "cluster.stacking=vmap")
    assert own.stacking(asking, asking.load_data()).way == "vmap"
    assert own.known_way(asking) == "loop"


def test_a_way_is_measured_while_others_stand_still(tmp_path, monkeypatch):
    states = []

    def choose(plan, data, way=None):
        states.append((way, _is_quiet(tmp_path)))
        return FOUND

    monkeypatch.setattr("experiments.simulated.known.choose_stacking", choose)
    own, plan = known(tmp_path), plan_of(tmp_path)
    data = plan.load_data()
    own.stacking(plan, data)
    own.stacking(plan, data)
    assert states == [(None, True), ("loop", False)]


def _is_quiet(study):
    """Whether somebody measures: then a process that begins to work has to wait."""

    def begin():
        with closing(Quiet(study)) as quiet, quiet.working():
            return 0

    pid, until_s = fork(begin), time.monotonic() + 0.3
    while time.monotonic() < until_s:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return True


def test_models_that_print_alike_are_known_apart_by_their_configurations(tmp_path):
    """As two sizes of pictures are, and dropout by a function of two rates."""
    plan = plan_of(tmp_path)
    known(tmp_path, [{"p": 0.0}]).remember_way(plan, FOUND)
    assert known(tmp_path, [{"p": 0.5}]).known_way(plan) is None
    assert known(tmp_path, [{"p": 0.0}]).known_way(plan) == "loop"


def recorded(study, name, *overrides, monkeypatch):
    """The profile of a run in `study`, and how often it rehearsed."""
    calls = []
    original = simulate.rehearse
    monkeypatch.setattr(
        simulate,
        "rehearse",
        lambda *args, **kw: calls.append(_is_quiet(study)) or original(*args, **kw),
    )
    config = compose_config([*SMALL, *overrides])
    assert run(config, study / name, study=study) == "completed"
    monkeypatch.setattr(simulate, "rehearse", original)
    assert calls in ([], [True])
    return (study / name / "profile.yaml").read_text(), len(calls)


@pytest.mark.parametrize(
    ("other", "rehearses"),
    [
        (["seed=1"], False),
        (["seed=1", "net=wan", "cluster.straggler=1", "eval_every=1", "lr_scale=2"], False),
        (["schedule=linear_warmup", "stop_at_target=true", "target_accuracy=0.5"], False),
        (["max_steps=30"], True),  # which may do work that a shorter run never comes to
        (["algo.compressor.bits=2"], True),
        (["batch_size=16"], True),
        (["net=two_sites", "algo.hierarchical=true"], True),
        (["bucket_bytes=65536"], True),
    ],
    ids=str,
)
def test_a_rehearsal_serves_all_runs_whose_workers_do_the_same(
    other, rehearses, tmp_path, monkeypatch
):
    words = ("algo=local_sgd",) if "algo.hierarchical=true" in other else ("algo=bytegrad",)
    words += ("algo.compressor=qsgd",) if "bits" in other[0] else ()
    first, num_first = recorded(tmp_path, "first", *words, monkeypatch=monkeypatch)
    again, num_again = recorded(tmp_path, "again", *words, *other, monkeypatch=monkeypatch)
    assert (num_first, num_again) == (1, int(rehearses))
    assert rehearses or again == first
    assert len(list((tmp_path / PROFILES_FOLDER).iterdir())) == 1 + rehearses


def test_what_a_run_names_or_resumes_goes_before_what_is_known(tmp_path, monkeypatch):
    first, _ = recorded(tmp_path, "first", "algo=bytegrad", "max_steps=4", "checkpoint_every=2",
                        monkeypatch=monkeypatch)  # fmt: skip
    values = yaml.safe_load(first)
    slower = yaml.safe_dump(values | {"forward_s": 3 * values["forward_s"]}, sort_keys=False)
    (tmp_path / "slower.yaml").write_text(slower)
    given = f"profile={tmp_path / 'slower.yaml'}"
    named, _ = recorded(
        tmp_path, "named", "algo=bytegrad", "seed=1", given, monkeypatch=monkeypatch
    )
    assert Profile.from_plain(yaml.safe_load(named)).forward_s > 2 * values["forward_s"]
    (tmp_path / "first" / "profile.yaml").write_text(slower)
    words = ("algo=bytegrad", "max_steps=6", f"resume={tmp_path / 'first'}", "checkpoint_every=2")
    resumed, _ = recorded(tmp_path, "resumed", *words, monkeypatch=monkeypatch)
    assert yaml.safe_load(resumed)["forward_s"] > 2 * values["forward_s"]


@pytest.mark.parametrize("content", ["", "device: cpu\nsharing", "jobs: [1]"])
def test_a_profile_that_cannot_be_read_is_measured_again(content, tmp_path, monkeypatch):
    first, _ = recorded(tmp_path, "first", "algo=bytegrad", monkeypatch=monkeypatch)
    (kept,) = (tmp_path / PROFILES_FOLDER).iterdir()
    assert kept.read_text() == first
    kept.write_text(content)
    words = ("algo=bytegrad", "seed=1")
    again, num = recorded(tmp_path, "again", *words, monkeypatch=monkeypatch)
    assert num == 1 and kept.read_text() == again


def test_code_of_ones_own_is_rehearsed_every_time(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from bagua_algos import AllReduce\nclass Mine(AllReduce):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("algo=allreduce", "algo._target_=mine.Mine")
    assert recorded(tmp_path, "first", *words, monkeypatch=monkeypatch)[1] == 1
    assert recorded(tmp_path, "second", *words, "seed=1", monkeypatch=monkeypatch)[1] == 1
    assert not (tmp_path / PROFILES_FOLDER).exists()


def test_who_waited_for_a_rehearsal_takes_what_it_found(tmp_path):
    """Two runs of a sweep that begin at once."""
    calls = tmp_path / "calls"
    found = Profile.from_plain(yaml.safe_load(_measured(tmp_path)))

    def measure():
        with calls.open("a") as file:
            file.write(".")
        time.sleep(0.2)
        return found

    def begin():
        with closing(Quiet(tmp_path)) as quiet, quiet.working():
            own = KnownMeasurements(tmp_path, quiet, model_and_task=None, step="one")
            return int(own.profile(measure) != found)

    pids = [fork(begin) for _ in range(3)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    assert calls.read_text() == "."


def _measured(folder):
    study = folder / "other"
    assert run(compose_config([*SMALL, "algo=bytegrad"]), study / "run", study=study) == "completed"
    assert app.summary(study / "run")["status"] == "completed"
    return (study / "run" / "profile.yaml").read_text()
