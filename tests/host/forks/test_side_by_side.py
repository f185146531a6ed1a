import os
import signal
import time
from functools import partial

import pytest

from host.cores import usable_cores
from host.errors import Failure, UserError
from host.forks.side_by_side import side_by_side, tell


def work(number, seconds=0.0):
    def do():
        time.sleep(seconds)
        return number, os.getpid(), usable_cores()

    return do


def test_answers_are_in_the_order_of_the_works_and_each_has_its_share_of_the_cores(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    come = []
    seen = tmp_path / "both others have come"

    def last():
        while not seen.exists():
            time.sleep(0.01)
        return work(0)()

    def note(answer):
        come.append(answer)
        if len(come) == 2:
            seen.touch()

    answers = side_by_side([last, work(1), work(2)], 2, note)
    assert [number for number, _, _ in answers] == [0, 1, 2]
    assert len({os.getpid(), *(pid for _, pid, _ in answers)}) == 4
    assert [cores for _, _, cores in answers] == [4, 4, 4]
    assert sorted(come) == sorted(answers)
    assert come[-1] == answers[0]


def test_the_largest_begin():
    come = []
    works = [partial(str, number) for number in range(4)]
    assert side_by_side(works, 1, come.append, [2.0, 1.0, 3.0, 2.0]) == ["0", "1", "2", "3"]
    assert come == ["2", "0", "3", "1"]


def test_what_works_tell_comes_with_their_numbers_and_before_their_answers():
    heard = []

    def work(number):
        for share in (0.5, 1.0):
            tell((number, share))
        return number

    works = [partial(work, number) for number in range(3)]
    own = side_by_side(works, 2, heard.append, on_told=lambda *told: heard.append(told))
    assert own == [0, 1, 2]
    for number in range(3):
        own = [(number, (number, 0.5)), (number, (number, 1.0)), number]
        assert [one for one in heard if one in own] == own
    assert len(heard) == 9
    tell("nobody hears of it")


def test_an_error_ends_all_works(tmp_path):
    file = tmp_path / "pid"

    def sleep():
        file.write_text(str(os.getpid()))
        time.sleep(60)

    def fail():
        while not (file.exists() and file.read_text()):
            time.sleep(0.01)
        raise UserError("mend it")

    with pytest.raises(UserError, match="mend it"):
        side_by_side([sleep, fail], 2, lambda answer: None)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize(
    ("asked", "cores"), [("3", 3), ("3,1", 3), ("99", 8), ("0", 1), ("all", 8), (None, 8)]
)
def test_a_program_computes_on_its_own_cores_and_no_more_than_it_is_told(asked, cores, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usable_cores() == cores


def test_a_process_that_is_killed_is_told():
    with pytest.raises(Failure, match="worked for this one was killed by SIGTERM"):
        side_by_side([lambda: os.kill(os.getpid(), signal.SIGTERM)], 1, lambda answer: None)
