import os
import signal
import subprocess
import sys

import pytest

from host.processes import fork

FORKS_INTO_A_SIGNAL = """
import os, signal, sys
from host import processes

def fork():
    pid = real_fork()
    if pid == 0:
        os.kill(os.getpid(), {number})
    return pid

def child():
    print("the child has gone on")
    return 0

real_fork, os.fork = os.fork, fork
signal.signal({number}, lambda *_: sys.exit("the child has gone on as its parent"))
pid = processes.fork(child)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_just_after_the_fork_kills_the_child(number):
    script = FORKS_INTO_A_SIGNAL.format(number=int(number))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == (f"{-number}\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_takes_signals_by_default_unless_its_parent_ignores_them(number):
    def has_handler() -> int:
        return {signal.SIG_DFL: 0, signal.SIG_IGN: 1}[signal.getsignal(number)]

    before = signal.getsignal(number)
    for handler, expected in ((lambda *_: None, 0), (signal.SIG_IGN, 1)):
        signal.signal(number, handler)
        try:
            _, status = os.waitpid(fork(has_handler), 0)
        finally:
            signal.signal(number, before)
        assert os.waitstatus_to_exitcode(status) == expected


def test_a_fork_leaves_the_signals_of_its_parent_as_they_are():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.waitpid(fork(lambda: 0), 0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
