"""Every command that writes a file where it is told to says at once that it cannot be."""

import pytest

from experiments.commands.relaxlab import programs
from host.errors import UserError
from netsim.__main__ import main as netsim
from tests import app

WRITING = {
    "run": ["+algo=allreduce", "backend=sim", "workers=2", "hydra.run.dir={out}"],
    "advise": ["algo=allreduce", "--out={out}"],
    "report": ["{runs}", "--out={out}"],
    "calibrate": ["algo=allreduce", "--out={out}/profile.yaml"],
    "compare": ["{runs}", "--out={out}"],
    "convergence": ["{runs}", "--out={out}"],
    "locate": ["--map={out}"],
    "surface": ["algo=allreduce", "--out={out}"],
    "equal_tuning": ["draw", "reference_fashion", "--trials=1", "--out={out}"],
    "tune": ["algo=allreduce", "backend=sim", "folder={out}"],
    "prediction_error": ["{runs}", "{runs}", "--out={out}/error.md"],
    "agreement": ["targets", "{runs}", "--out={out}/targets.yaml"],
    "published": ["--out={out}"],
    "validate": ["--out={out}"],
    "bench_nccl": ["net=wan", "--json={out}/transfers.json"],
}
NETSIM = [["validate", "--out", "{out}/n.md"], ["calibrate", "--out", "{out}/gloo.yaml"]]
PRINTING = {
    *("predict", "gradients", "watch", "bench", "bench_algorithms", "bench_simulation"),
    *("bench_systems", "collectives"),
}
OF_A_CHECKOUT = {"devices", "gpu_check", "reproduce", "study", "bagua_net"}
"""They write the project's own files, and those that their parts are told to."""


def filled(words, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    places = {"out": tmp_path / "file" / "below", "runs": tmp_path / "runs"}
    return [word.format(**places) for word in words]


def test_no_command_is_forgotten():
    assert {*WRITING, *PRINTING, *OF_A_CHECKOUT, "netsim"} == set(programs())


@pytest.mark.parametrize("name", WRITING)
def test_a_place_that_cannot_be_written_is_refused_before_anything_else(name, tmp_path):
    module = programs()[name]
    is_package = module.rpartition(".")[2] in ("experiments", "advise", "report", "predict")
    module += ".__main__" if is_package else ""
    ended = app.run(*filled(WRITING[name], tmp_path), module=module, limit_s=60)
    assert ended.returncode == 2, ended.stderr
    [line] = [
        line for line in ended.stderr.splitlines() if "cannot be written (Not a directory)" in line
    ]
    assert "below" in line and "Traceback" not in ended.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("words", NETSIM)
def test_so_are_those_of_netsim(words, tmp_path):
    with pytest.raises(UserError, match=r"below cannot be written \(Not a directory\)"):
        netsim(filled(words, tmp_path))
