"""What a child says to its parent, and that it ends when there is no parent to be told."""

import os
from collections.abc import Callable
from multiprocessing import Pipe

import pytest

from host.errors import Failure, UserError
from host.forks.channel import ParentChannel, told
from host.processes import fork


def test_parent_and_child_hear_each_other():
    ours, theirs = Pipe()
    ours.send("begin")
    channel = ParentChannel(theirs)
    assert channel.recv() == "begin"
    channel.send({"step": 1})
    assert ours.recv() == {"step": 1}


@pytest.mark.parametrize("talk", [lambda c: c.send(b"row"), lambda c: c.recv()])
def test_a_child_without_its_parent_ends_without_a_word(
    capfd, talk: Callable[[ParentChannel], object]
):
    ours, theirs = Pipe()
    ours.close()

    def run() -> int:
        talk(ParentChannel(theirs))
        print("went on")
        return 0

    pid = fork(run)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [UserError("take another"), Failure("it broke")])
def test_a_parent_hears_what_its_child_says_of_itself(error, capfd):
    ours, theirs = Pipe()

    def run() -> int:
        raise error

    pid = fork(lambda: told(ParentChannel(theirs), run))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    heard = ours.recv()
    assert (type(heard), str(heard)) == (type(error), str(error))
    assert capfd.readouterr() == ("", "")
