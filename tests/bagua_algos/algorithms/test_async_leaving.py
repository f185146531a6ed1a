"""Asynchronous averaging where workers end without `release`, as a script of any kind may."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bagua_algos.leaving_workers import NUM_WORKERS
from tests.once import made_once
from tests.paths import ROOT

PROGRAM = "tests.bagua_algos.leaving_workers"


def run(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", PROGRAM, str(folder)], cwd=ROOT, check=True, timeout=280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return made_once(tmp_path_factory, PROGRAM, run)


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        ("all_end", [0, 0, 0]),
        ("one_leaves", [0, 0, 0]),
        ("one_leaves_at_once", [0, 0, 0]),
        ("one_leaves_and_the_others_end", [0, 0, 0]),
        ("one_leaves_within_a_round", [3, 0, 0]),
        ("one_leaves_with_the_store", [0, 0, 0]),
    ],
)
def test_every_worker_ends_with_its_own_exit_code(folder, script, codes):
    said = [(folder / f"{script}.{rank}").read_text() for rank in range(NUM_WORKERS)]
    assert json.loads((folder / "codes.json").read_text())[script] == codes, said


@pytest.mark.parametrize(
    ("script", "num_steps"),
    [
        ("one_leaves", 10),
        ("one_leaves_at_once", 0),
        ("one_leaves_and_the_others_end", 10),
        ("one_leaves_within_a_round", 30),
        ("one_leaves_with_the_store", 10),
    ],
)
def test_the_others_are_warned_once_of_who_has_left(folder, script, num_steps):
    assert (folder / f"{script}.0").read_text() == ""
    for rank in range(1, NUM_WORKERS):
        said = (folder / f"{script}.{rank}").read_text()
        assert said.count("averaging has ended") == 1
        assert f"trains on alone: worker 0 has ended after {num_steps} steps" in said
        assert "call bagua_algos.release(model)" in said
