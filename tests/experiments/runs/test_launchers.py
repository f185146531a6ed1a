"""Launchers whose cluster is not there: one sentence, and nothing is run."""

import sys

import pytest
from omegaconf import OmegaConf

from host.errors import UserError
from hydra_plugins.relaxlab.ray_launcher import RayLauncher
from hydra_plugins.relaxlab.study_sweeper import StudySweeper


class NoCluster:
    """A launcher that ends as submitit's does."""

    def __init__(self, error):
        self.error = error

    def launch(self, overrides, initial_job_idx):
        raise self.error


def swept(tmp_path, monkeypatch, error):
    """The error of a sweep of one run whose launcher raises `error`."""
    # Not by its base's `__init__`: other tests have had Hydra make that class a second time.
    sweeper = object.__new__(StudySweeper)
    sweeper._retry_failed, sweeper.max_batch_size = False, None
    sweeper.config = OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(tmp_path)}, "launcher": {"_target_": "x"}}}
    )
    sweeper.launcher = NoCluster(error)
    run = StudyRunOfOne()
    monkeypatch.setattr(sweeper, "_runs", lambda root, arguments: iter([run]))
    with pytest.raises(Exception) as raised:
        sweeper.sweep([])
    return raised.value


class StudyRunOfOne:
    """What a sweep knows of its only run."""

    overrides = ("seed=1",)
    identity = "one"
    needs_host = False


def test_a_slurm_that_is_not_configured(tmp_path, monkeypatch, capsys):
    utils = pytest.importorskip("submitit.core.utils")
    error = utils.FailedJobError("sbatch: error: Unknown host\nsbatch: fatal: no configuration")
    said = swept(tmp_path, monkeypatch, error)
    assert isinstance(said, UserError)
    assert str(said).startswith("Slurm took no job (sbatch: fatal: no configuration): start this")
    assert "Traceback" not in capsys.readouterr().err


def test_another_error_of_a_launcher_is_shown_whole(tmp_path, monkeypatch, capsys):
    said = swept(tmp_path, monkeypatch, ZeroDivisionError("by nothing"))
    assert not isinstance(said, UserError)
    assert "Traceback" in capsys.readouterr().err


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    launcher = RayLauncher(OmegaConf.create({}), OmegaConf.create({}))
    with pytest.raises(UserError, match=r"hydra/launcher=ray is not installed: pip install"):
        launcher.launch([["seed=1"]], 0)
