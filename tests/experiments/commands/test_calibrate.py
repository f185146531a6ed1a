import pytest

from experiments.simulated.profile import Profile
from tests import app


def calibrate(*words):
    return app.run(*words, module="experiments.calibrate")


def test_a_profile_that_was_measured_once_times_a_run(tmp_path):
    words = ("+algo=bytegrad", "model=mlp", "workers=2")
    made = calibrate(*words, "--out", str(tmp_path / "p.yaml"))
    assert made.returncode == 0, made.stderr
    profile = Profile.load(tmp_path / "p.yaml")
    assert profile.setting["algo"] == "bytegrad"
    run = (*words, "backend=sim", "max_steps=3", "eval_every=3", f"profile={tmp_path / 'p.yaml'}")
    ended = app.run(*run, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    assert Profile.load(tmp_path / "run" / "profile.yaml") == profile


def test_several_algorithms_have_a_file_each(tmp_path):
    words = ("algo=allreduce,qsgd", "model=mlp", "workers=2", "--rounds", "2")
    made = calibrate(*words, "--out", str(tmp_path / "{algo}_w2.yaml"))
    assert made.returncode == 0, made.stderr
    for algo in ("allreduce", "qsgd"):
        assert Profile.load(tmp_path / f"{algo}_w2.yaml").setting["algo"] == algo
    refused = calibrate(*words, "--out", str(tmp_path / "p.yaml"))
    assert refused.returncode == 2
    assert "{algo}" in refused.stderr


def test_what_cannot_be_rehearsed_is_refused_in_a_sentence(tmp_path):
    refused = calibrate("algo=torch_ddp", "--out", str(tmp_path / "p.yaml"))
    assert refused.returncode == 2
    assert "needs real workers" in refused.stderr
    assert not (tmp_path / "p.yaml").exists()


@pytest.mark.parametrize("name", ["", "{tmp_path}", "/dev/null"])
def test_what_is_no_file_is_refused_before_the_work(name, tmp_path):
    out = name.format(tmp_path=tmp_path)
    refused = calibrate("algo=bytegrad", "--out", out)
    assert refused.returncode == 2
    assert refused.stderr == f"error: --out={out} is no file: name one, such as {{algo}}.yaml\n"
