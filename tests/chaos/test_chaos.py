"""A fixed handful of cases; `python -m tests.chaos` draws others."""

from pathlib import Path

import pytest

from tests import app, small_disk
from tests.chaos.case import KINDS, STRIKES, draw
from tests.chaos.judge import faults
from tests.chaos.room import Ended, run_in_room


def test_cases_are_of_all_kinds_and_their_seed_is_all_of_them():
    cases = [draw(seed) for seed in range(400)]
    assert {case.kind for case in cases} == KINDS.keys()
    assert {case.strike for case in cases} == STRIKES.keys()
    assert cases == [draw(seed) for seed in range(400)]


def ended(code=0, left=(), output="", done="nothing"):
    return Ended(code, 1.0, 0.5, done, output, "", left)


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ({"code": None}, "hung"),
        ({"left": ("process 7 (worker)",)}, "left: process 7"),
        ({"output": "Traceback", "code": 1}, "a traceback"),
        ({"code": 3, "output": "error: x"}, "exit code 3"),
        ({"code": 1}, "without a word"),
    ],
)
def test_what_is_wrong_is_a_fault(how, fault, tmp_path):
    case = next(case for case in map(draw, range(400)) if case.kind == "sim")
    assert any(fault in said for said in faults(case, ended(**how), tmp_path))
    assert not faults(case, ended(), tmp_path)


def test_what_is_left_in_a_room_is_seen(tmp_path, monkeypatch):
    small_disk.skip_without_mounts()
    monkeypatch.setattr("tests.chaos.room.GONE_S", 0.2)
    ran = run_in_room(
        tmp_path, ("tests.chaos.leaves",), lambda pid: None, disk_bytes=None, limit_s=30
    )
    assert ran.code == 0, ran.errors
    kinds = [what.split()[0] for what in ran.left]
    assert kinds == ["process", "file", "file"]
    assert not Path("/dev/shm/b").exists()  # which was the room's own


@pytest.mark.root
@pytest.mark.parametrize("seed", [4])
def test_a_case_ends_well(seed):
    small_disk.skip_without_mounts()
    tried = app.run("--seed", seed, "--count", 1, module="tests.chaos.__main__", limit_s=200)
    assert tried.returncode == 0, tried.stdout + tried.stderr
