"""Who measures has the host for itself, among the processes that work in one folder."""

import os
import re
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from host import quiet
from host.processes import fork, kill
from host.quiet import FOLDER, Quiet, working_in


class Worker:
    """A process that works in a folder and counts its pieces of work in a file.

    Args:
        folder: where it works.
        piece_s: how long a piece takes.
        in_child: whether a child that it has forked does the work, as trainings have.
        gives_way: whether it does so between pieces.
    """

    def __init__(self, folder, *, piece_s=0.001, in_child=False, gives_way=True):
        self._file = folder / f"count of {time.monotonic_ns()}"
        self._file.write_text("")
        work = (self._fork_and_wait if in_child else self._count), piece_s, gives_way
        self._pid = fork(lambda: self._work(folder, *work))
        self.await_more(0)

    def _work(self, folder, count, piece_s, gives_way):
        with working_in(folder) as own:
            count(own, piece_s, gives_way)
        return 0

    def _count(self, own, piece_s, gives_way):
        with self._file.open("a") as file:
            while True:
                file.write(".")
                file.flush()
                time.sleep(piece_s)
                if gives_way:
                    own.give_way()

    def _fork_and_wait(self, *work):
        os.waitpid(fork(lambda: self._count(*work)), 0)

    @property
    def pid(self):
        return self._pid

    @property
    def count(self):
        return self._file.stat().st_size

    def await_more(self, than):
        until_s = time.monotonic() + 30
        while self.count <= than:
            assert time.monotonic() < until_s, "it has stopped"
            time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill(self._pid)


@pytest.mark.parametrize("in_child", [False, True])
def test_who_works_stands_still_while_another_process_measures(in_child, tmp_path):
    with Worker(tmp_path, in_child=in_child) as one, Worker(tmp_path) as other:
        own = Quiet(tmp_path)
        for _ in range(3):
            with own.measuring():
                before = one.count, other.count
                time.sleep(0.1)
                assert (one.count, other.count) == before
            one.await_more(before[0])
            other.await_more(before[1])


def test_one_measures_at_a_time_and_then_all_go_on_with_their_work(tmp_path):
    """Each writes when it began and when it ended."""
    file = tmp_path / "times"

    def measure():
        with working_in(tmp_path) as own:
            for _ in range(5):
                with own.measuring(), file.open("a") as opened:
                    began_s = time.monotonic()
                    time.sleep(0.01)
                    opened.write(f"{began_s} {time.monotonic()}\n")
                own.give_way()
        return 0

    pids = [fork(measure) for _ in range(3)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    spans = sorted(tuple(map(float, line.split())) for line in file.read_text().splitlines())
    assert len(spans) == 15
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_nobody_waits_for_who_was_killed(tmp_path):
    with Worker(tmp_path, in_child=True, gives_way=False):
        pass
    with closing(Quiet(tmp_path)) as own, own.measuring():
        pass
    pid = fork(lambda: _measure_and_die(tmp_path))
    os.waitpid(pid, 0)
    with Worker(tmp_path) as worker:
        worker.await_more(3)


def _measure_and_die(folder):
    with Quiet(folder).measuring():
        os.kill(os.getpid(), 9)
    return 0


def test_who_does_not_pause_is_named_and_waited_for_no_longer(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quiet, "LIMIT_S", 0.2)
    with Worker(tmp_path, gives_way=False) as worker:
        with Quiet(tmp_path).measuring():
            pass
        said = capsys.readouterr().err
        assert said == (
            f"process {worker.pid} did not pause within 0.2 s: this one measures beside it\n"
        )


def test_who_measures_without_an_end_is_waited_for_once(tmp_path, monkeypatch, capsys):
    """As one that is suspended: steps beside it would else take the limit each."""
    monkeypatch.setattr(quiet, "LIMIT_S", 0.2)
    file = tmp_path / "begun"

    def measure():
        with Quiet(tmp_path).measuring():
            file.touch()
            time.sleep(60)
        return 0

    with working_in(tmp_path) as own:
        assert own is not None
        pid = fork(measure)
        try:
            until_s = time.monotonic() + 20
            while not file.exists() and time.monotonic() < until_s:
                own.give_way()
            began_s = time.monotonic()
            for _ in range(100):
                own.give_way()
            assert time.monotonic() - began_s < 10
        finally:
            kill(pid)
    said = f"process {pid} did not pause within 0.2 s: this one works beside it\n"
    assert capsys.readouterr().err == said


def test_the_same_process_is_waited_for_so_long_but_many_may_take_their_turns(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(quiet, "LIMIT_S", 0.5)

    def measure():
        with Quiet(tmp_path).measuring():
            time.sleep(0.3)
        return 0

    pids = [fork(measure) for _ in range(4)]
    time.sleep(0.05)
    with Quiet(tmp_path).measuring():
        pass
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert capsys.readouterr().err == ""


def test_hosts_that_share_a_folder_do_not_wait_for_each_other(tmp_path, monkeypatch):
    with Worker(tmp_path, gives_way=False):
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        began_s = time.monotonic()
        with Quiet(tmp_path).measuring():
            assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("cause", ["no folder", "no locks"])
def test_where_there_are_no_locks_nobody_waits(cause, tmp_path, monkeypatch):
    if cause == "no folder":
        (tmp_path / FOLDER).write_text("a file")
    else:
        monkeypatch.setattr("fcntl.flock", _has_none)
    with working_in(tmp_path) as own, own.measuring():
        own.give_way()


def _has_none(descriptor, kind):
    raise OSError(95, "Operation not supported")


def test_work_of_no_folder_is_nobodys_business():
    with working_in(None) as own:
        assert own is None


def test_nothing_stays_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with working_in(tmp_path) as own, own.measuring():
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert len(os.listdir("/proc/self/fd")) == before
    names = [file.name for file in (Path(tmp_path) / FOLDER).iterdir()]
    assert sorted(re.sub(r".*\.", "", name) for name in names) == ["turn", "work"]
