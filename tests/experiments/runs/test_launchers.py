"""Launchers whose cluster is not there: one sentence, and nothing is run."""

import sys
from importlib.util import find_spec

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from experiments.runs.study import RunsFailed
from host.errors import UserError
from hydra_plugins.relaxlab.ray_launcher import RayLauncher
from hydra_plugins.relaxlab.study_sweeper import StudySweeper, _quoted
from tests import app


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
    sweeper._retry_failed, sweeper.max_batch_size, sweeper._at_once = False, None, None
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
    told = capsys.readouterr().err
    assert "Traceback" in told and "ZeroDivisionError: by nothing" in told


def test_an_error_of_a_launcher_that_says_nothing(tmp_path, monkeypatch, capsys):
    said = swept(tmp_path, monkeypatch, AssertionError())
    assert isinstance(said, RunsFailed)
    assert str(said) == "AssertionError: it says nothing"
    assert "1 run, 1 to do" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["max_batch_size", "at_once"])
@pytest.mark.parametrize("size", [-1, 0, 2.5, "all", True])
def test_no_batch_is_smaller_than_a_run(key, size):
    sweeper = object.__new__(StudySweeper)
    sweeper.config, sweeper.max_batch_size, sweeper._at_once = OmegaConf.create(), None, None
    setattr(sweeper, "_at_once" if key == "at_once" else key, size)
    said = f"hydra.sweeper.{key} must be a whole number, at least 1, or null, got {size}"
    with pytest.raises(UserError, match=said):
        sweeper.sweep([])


@pytest.mark.parametrize("text", ["a\\b", "it's", "a\\", "a\\'b", "a b"])
def test_hydra_reads_what_is_quoted(text):
    assert OverridesParser.create().parse_override(f"k={_quoted(text)}").value() == text


class StubOfRay:
    """Ray's ways to refuse."""

    @staticmethod
    def remote(**options):
        if options["num_cpus"] == "many":
            raise TypeError("num_cpus\nmust be a number")
        return lambda function: function

    @staticmethod
    def init(**options):
        raise ConnectionError(f"nobody at {options['address']}")


@pytest.mark.parametrize(
    ("num_cpus", "said"),
    [
        ("many", "Ray refuses hydra.launcher.remote: num_cpus must be a number"),
        (1, "Ray refuses hydra.launcher.init: nobody at ray://head:10001"),
    ],
)
def test_what_ray_refuses(num_cpus, said, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", StubOfRay)
    init, remote = {"address": "ray://head:10001"}, {"num_cpus": num_cpus}
    launcher = RayLauncher(OmegaConf.create(init), OmegaConf.create(remote))
    hydra = {"hydra_logging": {"root": None}, "verbose": False, "sweep": {"dir": str(tmp_path)}}
    launcher._config = OmegaConf.create({"hydra": hydra})
    with pytest.raises(UserError, match=f"^{said}$"):
        launcher.launch([["seed=1"]], 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hydra/launcher=submitit_slurm"], "pip install 'relaxlab[slurm]'"),
        (["hydra/launcher=slurm"], "there is no hydra/launcher named 'slurm': choose joblib, ray"),
        (["hydra/launcher=ray", "hydra.launcher.init.adress=1"], "there is no key"),
        (["hydra/launcher=ray", "hydra.sweeper.at_once=2"], "at_once is of this host's own"),
        (["hydra/launcher=ray", "hydra.launcher.init={address: here}", "model=no"], "model named"),
    ],
)
def test_a_launcher_that_is_not_there(words, said, tmp_path):
    if words == ["hydra/launcher=submitit_slurm"] and find_spec("submitit"):
        pytest.skip("it is there")
    ended = app.run("-m", "algo=allreduce", f"hydra.sweep.dir={tmp_path}", *words)
    assert ended.returncode == 2 and said in ended.stderr, ended.stderr
    assert ended.stderr.count("\n") == 1


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    launcher = RayLauncher(OmegaConf.create({}), OmegaConf.create({}))
    with pytest.raises(UserError, match=r"hydra/launcher=ray is not installed: pip install"):
        launcher.launch([["seed=1"]], 0)
