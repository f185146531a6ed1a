"""The end of a process that has talked over gloo.

gloo's threads let go of an operation's tensors after its caller has been told of the end. A thread
that asks for Python's lock for this while Python shuts down is ended by Python amid C++ code, which
aborts the process: one run of four that ended with an `all_gather`.
"""

import os
import threading
import time
from pathlib import Path

LIMIT_S = 1.0
_PAUSE_S = 0.01

has_process_groups = threading.Event()
"""Set by whoever makes one."""


def let_threads_rest() -> None:
    """Wait until no other thread of this process computes, `LIMIT_S` seconds at most."""
    if not has_process_groups.is_set():
        return
    until_s, num_quiet = time.monotonic() + LIMIT_S, 0
    while num_quiet < 2 and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)  # in which others may have the lock
        num_quiet = 0 if _others_run() else num_quiet + 1


def _others_run() -> bool:
    own = str(threading.get_native_id())
    return any(_state(thread) == "R" for thread in os.listdir("/proc/self/task") if thread != own)


def _state(thread: str) -> str:
    """R: it runs, or waits for a processor; S: it waits for something else."""
    try:
        stat = Path("/proc/self/task", thread, "stat").read_text()
    except OSError:  # it has ended
        return "X"
    return stat.rpartition(")")[2].split()[0]
