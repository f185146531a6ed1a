"""The app as a user starts it, programs of the tests, and the processes that they make."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tests.paths import ROOT

COMMAND = [sys.executable, "-W", "error", "-m", "experiments"]


def python_path(root: Path) -> str:
    """The tree at `root` before what PYTHONPATH names already."""
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])


class Forks:
    """What begins commands in the tree at `root`: a process of `tests.forks`, which all that name
    it share.
    """

    def __init__(self, name: str, root: Path = ROOT, **environment: str) -> None:
        subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.forks", name, root],
            cwd=root,
            env=os.environ | {"PYTHONPATH": python_path(root)} | environment,
            check=True,
        )
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"\0{name}")
        self._answers = self._socket.makefile()
        atexit.register(self.close)

    def ask(self, words: list[object]) -> int:
        """Send a line; returns its answer."""
        self._socket.sendall(json.dumps(words).encode() + b"\n")
        return int(self._answers.readline())

    def close(self) -> None:
        """The process ends once nobody is connected with it."""
        self._answers.close()
        self._socket.close()


class Command:
    """The app, another module's command or a program of the tests, in a fork."""

    def __init__(
        self,
        *arguments: object,
        module: str = "experiments.__main__",
        forks: Forks | None = None,
        strict: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.words = [module, *map(str, arguments)]
        self._forks = forks or _forks()
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("output", "errors")]
        files = map(str, self._files)
        self.pid = self._forks.ask([module, self.words[1:], *files, strict, dict(environment)])

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
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run it, another module's command or a program of the tests, to its end.

    After `limit_s` it is killed. `strict`: a warning is an error.
    """
    command = Command(
        *arguments, module=module, forks=forks, strict=strict, environment=environment
    )
    return command.end(limit_s)


@cache
def _forks() -> Forks:
    """One for all tests, of all test processes."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    return Forks(f"relaxlab tests {run}")


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
    """Pids of the children of a process, oldest first. The kernel may leave some out where one ends
    while it lists them: two lists must be the same.
    """
    before, found = None, _listed_children(pid)
    while found != before:
        before, found = found, _listed_children(pid)
    return found


def _listed_children(pid: int) -> list[int]:
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
