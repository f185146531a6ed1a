"""The app as a user starts it, and the processes that it makes."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.paths import ROOT

COMMAND = [sys.executable, "-W", "error", "-m", "experiments"]


class Command:
    """The app, or another module's command, in a fork of `tests.experiments.forks`."""

    def __init__(self, *arguments: object, module: str = "experiments.__main__") -> None:
        self.words = [module, *map(str, arguments)]
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("output", "errors")]
        self.pid = _ask([module, self.words[1:], *map(str, self._files)])

    def end(self, limit_s: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end. After `limit_s` it is killed."""
        deadline = time.monotonic() + limit_s
        while is_running(self.pid):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        code = _ask([self.pid])
        output, errors = (file.read_text() if file.exists() else "" for file in self._files)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.words, code, output, errors)


def run(
    *arguments: object, module: str = "experiments.__main__", limit_s: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run it, or another module's command, to its end. After `limit_s` it is killed."""
    return Command(*arguments, module=module).end(limit_s)


def _ask(words: list[object]) -> int:
    forks = _forks()
    assert forks.stdin is not None and forks.stdout is not None
    forks.stdin.write(json.dumps(words) + "\n")
    forks.stdin.flush()
    return int(forks.stdout.readline())


@cache
def _forks() -> subprocess.Popen[str]:
    """See `tests.experiments.forks`: one for all tests, and gone with them."""
    command = [sys.executable, "-W", "error", "-m", "tests.experiments.forks"]
    pipe = subprocess.PIPE
    forks = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    atexit.register(forks.communicate)  # closes its input
    return forks


def start(folder: Path, *arguments: str) -> Command:
    """Start a run of 4 workers that takes minutes; returns once it trains."""
    app = Command("algo=allreduce", "max_steps=5000", f"hydra.run.dir={folder}", *arguments)
    journal = folder / "metrics.jsonl"

    def trains() -> bool:
        assert is_running(app.pid), app.end(0)
        return journal.exists() and journal.read_text().count("\n") > 2

    wait_for(trains, 90, "training")
    return app


def wait_for(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {limit_s} s"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Pids of the children of a process, oldest first."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        lists = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except FileNotFoundError:
        return []
    return sorted(int(child) for text in lists for child in text.split())


def process_tree(app: Command) -> tuple[int, list[int]]:
    """The pids of the hub and of its children: the workers by rank, and a switch if it has one."""
    (hub,) = children(app.pid)
    return hub, children(hub)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
