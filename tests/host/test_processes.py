import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from host.errors import ChildError, UserError
from host.processes import allow_open_files, fork, run_in_child, schedule_as_batch

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


def test_a_child_answers_with_what_its_function_returns_and_is_gone():
    answer = run_in_child(lambda: {"pid": os.getpid(), "much": "x" * 10_000}, doing="answering")
    assert answer["pid"] != os.getpid()
    assert len(answer["much"]) == 10_000
    with pytest.raises(ProcessLookupError):
        os.kill(answer["pid"], 0)


def test_what_the_function_raises_in_its_child_is_raised_here():
    def refuse() -> None:
        raise ValueError("three", 3)

    with pytest.raises(ValueError, match="three") as raised:
        run_in_child(refuse, doing="refusing")
    assert raised.value.args == ("three", 3)


def test_a_child_that_dies_or_is_too_slow_is_named_by_what_it_was_doing():
    with pytest.raises(ChildError, match="The process that was leaving early died"):
        run_in_child(lambda: os._exit(0), doing="leaving early")
    begin_s = time.monotonic()
    with pytest.raises(ChildError, match=r"was sleeping did not end within 0\.1 s"):
        run_in_child(lambda: time.sleep(60), doing="sleeping", limit_s=0.1)
    assert time.monotonic() - begin_s < 30


def test_open_files_are_allowed_as_far_as_the_shell_lets_them():
    def work():
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 50))
        allow_open_files(40)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with pytest.raises(UserError, match="this shell allows 50 open files: allow 60 by ulimit"):
            allow_open_files(60)
        return limits

    assert run_in_child(work, doing="opening") == (40, 50)


def _scheduled_from(policy: int) -> list[int]:
    """Of a process with this policy, and of a thread that it starts then."""
    os.sched_setscheduler(0, policy, os.sched_param(0))
    schedule_as_batch()
    thread = ThreadPoolExecutor(1).submit(os.sched_getscheduler, 0)
    return [os.sched_getscheduler(0), thread.result()]


def test_batch_work_is_scheduled_so_unless_somebody_has_chosen_otherwise():
    batch = run_in_child(lambda: _scheduled_from(os.SCHED_OTHER), doing="batch work")
    idle = run_in_child(lambda: _scheduled_from(os.SCHED_IDLE), doing="idle work")
    assert (batch, idle) == ([os.SCHED_BATCH] * 2, [os.SCHED_IDLE] * 2)
