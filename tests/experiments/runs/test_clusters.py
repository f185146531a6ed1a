"""Sweeps by Hydra's launchers. Slurm and Ray: .ci/clusters."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.plan.compose import compose_config
from experiments.runs.side_by_side import check_side_by_side, jobs_at_once, needs_host
from experiments.runs.study import StudyRun
from host.errors import UserError
from tests import app

HAS_JOBLIB = find_spec("hydra_plugins.hydra_joblib_launcher") is not None
HAS_SUBMITIT = find_spec("hydra_plugins.hydra_submitit_launcher") is not None


@pytest.mark.parametrize(
    ("overrides", "is_alone"),
    [
        (["backend=gloo"], True),
        (["backend=nccl"], True),
        (["backend=auto"], True),
        (["backend=sim"], False),
        (["backend=sim", "device=cuda"], True),
    ],
)
def test_what_measures_times_has_the_host_for_itself(overrides, is_alone, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    config = compose_config(["algo=allreduce", *overrides])
    assert needs_host(config) is is_alone
    assert jobs_at_once(config) == (1 if is_alone else 8)


def test_workers_that_share_a_device_take_as_many_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    config = compose_config(["algo=allreduce", "backend=sim", "cluster.sharing=3"])
    assert jobs_at_once(config) == 2


@pytest.mark.parametrize("sharing", ["0", "-1", "null", "two"])
def test_what_no_run_can_share_is_left_to_the_runs_to_refuse(sharing):
    config = compose_config(["algo=allreduce", "backend=sim", f"cluster.sharing={sharing}"])
    assert jobs_at_once(config) == 1


def test_real_runs_are_not_run_side_by_side():
    real, simulated = (
        StudyRun(overrides=(), identity=str(alone), needs_host=alone) for alone in (True, False)
    )
    joblib = OmegaConf.create({"n_jobs": 2})
    check_side_by_side([simulated], joblib)
    check_side_by_side([real], OmegaConf.create({"n_jobs": 1}))
    check_side_by_side([real], OmegaConf.create({}))
    with pytest.raises(UserError, match=r"1 of the runs measure times.* hydra.launcher.n_jobs=1"):
        check_side_by_side([real, simulated], joblib)


@pytest.mark.skipif(HAS_JOBLIB or HAS_SUBMITIT, reason="launchers are installed")
@pytest.mark.parametrize(("launcher", "extra"), [("joblib", "joblib"), ("submitit_slurm", "slurm")])
def test_a_launcher_that_is_not_installed_is_named(launcher, extra):
    ended = app.run("-m", "experiment=smoke", f"hydra/launcher={launcher}")
    assert ended.returncode == 2
    assert f"pip install 'relaxlab[{extra}]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.skipif(not HAS_JOBLIB, reason="needs hydra-joblib-launcher")
def test_joblib_runs_a_study(tmp_path):
    smoke(tmp_path, "joblib")


@pytest.mark.skipif(not HAS_SUBMITIT, reason="needs hydra-submitit-launcher")
def test_submitit_runs_a_study(tmp_path):
    smoke(tmp_path, "submitit_local")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_ray_runs_a_study(tmp_path):
    smoke(tmp_path, "ray")


def smoke(folder: Path, launcher: str) -> None:
    command = ("-m", "experiment=smoke", f"hydra.sweep.dir={folder}")
    ended = app.run(*command, f"hydra/launcher={launcher}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 runs, 4 done" in app.run(*command).stdout  # another launcher has nothing left to do
