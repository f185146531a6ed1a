"""Sweeps in a process that has imported everything once: `python -m tests.experiments.sweeps`.

It runs a sweep in one fork after another. Each but the last is killed at a random moment: after a
random part of what the sweep took when it was left alone.

    sweeps.py SEED NUM_KILLS CALM DISTURBED OVERRIDE ...
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable

from experiments.__main__ import main
from tests.forks import import_all


def sweep(folder: str, overrides: list[str]) -> Callable[[], int]:
    def run() -> int:
        sys.argv = ["experiments", "-m", *overrides, f"hydra.sweep.dir={folder}"]
        return main()

    return run


def fork(run: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def run_to_its_end(folder: str, overrides: list[str]) -> float:
    """Returns how long it took in seconds."""
    started_s = time.monotonic()
    _, status = os.waitpid(fork(sweep(folder, overrides)), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return time.monotonic() - started_s


def disturb(seed: int, num_kills: int, calm: str, disturbed: str, overrides: list[str]) -> None:
    import_all()
    chance = random.Random(seed)
    took_s = run_to_its_end(calm, overrides)
    for _ in range(num_kills):
        pid = fork(sweep(disturbed, overrides))
        time.sleep(chance.uniform(0, took_s / 2))
        os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        os.waitpid(pid, 0)
    run_to_its_end(disturbed, overrides)


if __name__ == "__main__":
    disturb(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:])
