import errno
import os
import subprocess
import time

import pytest

from host.processes import run_in_child
from netsim.errors import NamespaceError
from netsim.links import unshare


def interfaces() -> list[str]:
    with open("/proc/net/dev") as table:
        return [line.partition(":")[0].strip() for line in table if ":" in line]


def refuse_with(monkeypatch, *numbers: int) -> None:
    """Let the kernel refuse, one call after the other."""
    left = list(numbers)

    def refuse(flags: int) -> None:
        number = left.pop(0)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(unshare, "_unshare", refuse)


def enter() -> list[str]:
    unshare.enter_network_namespace()
    return interfaces()


@pytest.mark.root
def test_a_network_namespace_is_new_and_empty(scenario):
    del scenario  # it skips where the host forbids namespaces
    before = interfaces()
    assert run_in_child(enter, doing="entering a namespace") == ["lo"]
    assert interfaces() == before


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ([errno.ENOSPC], "raise the sysctl user.max_net_namespaces"),
        ([errno.EPERM, errno.EPERM], "forbids user namespaces .*: run as root, or allow them"),
        ([errno.EPERM, errno.ENOSPC], "sysctl user.max_user_namespaces above 0"),
    ],
)
def test_a_host_that_refuses_a_network_namespace_is_told_what_to_do(monkeypatch, numbers, sentence):
    refuse_with(monkeypatch, *numbers)
    with pytest.raises(NamespaceError, match=sentence):
        run_in_child(enter, doing="entering a namespace")


def test_a_host_that_refuses_a_pid_namespace_is_told_what_to_do(monkeypatch):
    refuse_with(monkeypatch, errno.ENOSPC)
    with pytest.raises(NamespaceError, match="raise the sysctl user"):
        unshare.run_in_pid_namespace(lambda: 0)


def in_pid_namespace(main) -> int:
    unshare.enter_network_namespace()  # with it the rights of a user namespace
    return unshare.run_in_pid_namespace(main)


@pytest.mark.root
def test_the_exit_code_of_a_pid_namespace_is_that_of_its_first_process(scenario):
    del scenario
    assert run_in_child(lambda: in_pid_namespace(lambda: os.getpid() + 6), doing="counting") == 7


@pytest.mark.root
def test_what_a_process_of_a_pid_namespace_has_started_dies_with_it(scenario):
    del scenario
    reader, writer = os.pipe()

    def start_and_end() -> int:
        subprocess.Popen(["sleep", "60"], pass_fds=[writer])
        return 0

    begin_s = time.monotonic()
    assert run_in_child(lambda: in_pid_namespace(start_and_end), doing="starting a command") == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert not pipe.read()  # its end is the end of all that hold it
    assert time.monotonic() - begin_s < 30
