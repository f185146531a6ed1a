"""The app as a user starts it, programs of the tests, and the processes that they make."""

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


class Forks:
    """A process of `tests.forks` in the tree at `root`, gone with this one."""

    def __init__(self, root: Path = ROOT, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.forks"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)  # closes its input

    def ask(self, words: list[object]) -> int:
        """Write a line of its input; returns its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Command:
    """The app, another module's command or a program of the tests, in a fork."""

    def __init__(
        self,
        *arguments: object,
        module: str = "experiments.__main__",
        forks: Forks | None = None,
        strict: bool = True,
    ) -> None:
        self.words = [module, *map(str, arguments)]
        self._forks = forks or _forks()
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("output", "errors")]
        self.pid = self._forks.ask([module, self.words[1:], *map(str, self._files), strict])

    def end(self, limit_s: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end. After `limit_s` it is killed."""
        deadline = time.monotonic() + limit_s
        while is_running(self.pid):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        code = self._forks.ask([self.pid])
        output, errors = (file.read_text() if file.exists() else "" for file in self._files)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.words, code, output, errors)


def run(
    *arguments: object,
    module: str = "experiments.__main__",
    limit_s: float = 200,
    forks: Forks | None = None,
    strict: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run it, another module's command or a program of the tests, to its end.

    After `limit_s` it is killed. `strict`: a warning is an error.
    """
    return Command(*arguments, module=module, forks=forks, strict=strict).end(limit_s)


@cache
def _forks() -> Forks:
    """One for all tests."""
    return Forks()


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


def roles(launcher: int) -> dict[str, int]:
    """The processes of a run of real workers, as far as they are there, by what they are."""
    found = {"launcher": launcher} | dict(zip(("hub", "crew"), children(launcher), strict=False))
    if "crew" not in found:
        return found
    found |= {f"worker {rank}": pid for rank, pid in enumerate(children(found["crew"]))}
    return found | dict(zip(("switch",), children(found["hub"]), strict=False))


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
