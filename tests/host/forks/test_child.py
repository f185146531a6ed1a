import os
import signal

import pytest

from host.errors import Failure, UserError
from host.forks.child import run_in_child_reporting


def test_a_child_reports_rows_and_answers():
    rows = []

    def work(report):
        for step in range(3):
            report({"step": step, "pid": os.getpid()})
        return os.getpid()

    pid = run_in_child_reporting(work, rows.append)
    assert pid != os.getpid()
    assert rows == [{"step": step, "pid": pid} for step in range(3)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("error", [UserError("mend it"), ArithmeticError("by nothing")])
def test_what_a_caller_expects_is_raised_as_it_is(error):
    def work(report):
        raise error

    with pytest.raises(type(error), match=str(error)):
        run_in_child_reporting(work, lambda row: None, expected=(ArithmeticError,))


def test_what_nobody_expects_is_a_runtime_error(capfd):
    def work(report):
        raise ZeroDivisionError("by nothing\nat all")

    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: by nothing$"):
        run_in_child_reporting(work, lambda row: None)
    assert "Traceback" in capfd.readouterr().err


def test_a_child_that_is_killed_is_noticed():
    def work(report):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Failure, match="died"):
        run_in_child_reporting(work, lambda row: None)


def test_a_caller_that_stops_leaves_no_child():
    pids = []

    def stop(row):
        pids.append(row["pid"])
        raise KeyboardInterrupt

    def work(report):
        report({"pid": os.getpid()})
        signal.pause()

    with pytest.raises(KeyboardInterrupt):
        run_in_child_reporting(work, stop)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
