"""Tests in a fork, in a copy of the tree: does one of them fail?"""

import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

import pytest

OPTIONS = (
    *("-q", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # forks inherit what is imported
)
IMPORTED = (
    *("torch", "torch._dynamo", "torch.distributed", "torch.func", "numpy", "pandas", "yaml"),
    *("pyarrow.parquet", "scipy.stats", "scipy.optimize", "numba", "hypothesis", "hydra"),
    *("omegaconf", "matplotlib.pyplot", "seaborn", "sklearn.datasets", "rich.console"),
    *("pyroute2", "psutil", "hypothesis.strategies", "torch.distributed.fsdp"),
)
MOST_BYTES = 12 * 2**30
"""A mutant may make a loop without an end that fills the memory."""


Line = tuple[str, int]
"""Of a file."""


class Ending(NamedTuple):
    """How tests ended: pytest's exit code, None where they were stopped; and what they told."""

    code: int | None
    told: str
    seconds: float


class Plugin(Protocol):
    """A plugin of pytest, and what it has seen."""

    def told(self) -> str:
        """As text."""
        ...


def import_once() -> None:
    """What all forks need, of others' packages alone."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run(folder: Path, arguments: Sequence[str], plugin: Plugin, limit_s: float) -> Ending:
    """Run pytest with these arguments in `folder`. What `plugin` has seen comes back, as text."""
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile() as told:
        pid = os.fork()
        if pid == 0:
            _be(folder, arguments, plugin, told.name)
        code = _wait(pid, begin + limit_s)
        _kill(pid)  # also what its tests may have left
        if code is None:
            os.waitpid(pid, 0)
        return Ending(code, Path(told.name).read_text(), time.monotonic() - begin)


def _wait(pid: int, deadline: float) -> int | None:
    """The exit code, None where the deadline comes first."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _be(folder: Path, arguments: Sequence[str], plugin: Plugin, told: str) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # as its forks need them
        _move(folder)
        _serve_forks()
        code = int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))
        Path(told).write_text(plugin.told())
    finally:
        os._exit(code)


def _move(folder: Path) -> None:
    """Be in the copy: nothing of the tree where this began is imported from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    here = os.getcwd()
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", here))]
    os.environ["PYTHONPATH"] = str(folder)
    os.chdir(folder)


def _serve_forks() -> None:
    """Commands that tests begin are forks of this process, too, which has imported what takes long:
    a process of their own would import it for each mutant.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0relaxlab tests {os.getpid()}")
    listener.listen()
    if os.fork():
        listener.close()
        return
    warnings.simplefilter("error")
    forks: Any = importlib.import_module("tests.forks")
    forks.import_all = lambda: None
    forks.serve(listener)
    os._exit(0)


class FirstFailure:
    """A plugin that tells which test failed first."""

    def __init__(self) -> None:
        self._name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._name:
            self._name = report.nodeid

    def told(self) -> str:
        return self._name


class Reach:
    """A plugin that tells how long each test takes, and which lines of some files it reaches: what
    its fixtures reach, whoever used them first, is reached by all who use them. Or which failed.
    """

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        self._paths = {str(folder / path): path for path in paths}
        self._seconds: dict[str, float] = {}
        self._failed: list[str] = []
        self._lines: dict[str, set[Line]] = {}
        self._of_fixtures: dict[str, set[Line]] = {}
        self._now: set[Line] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self._now = set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # pyright: ignore[reportArgumentType]
            of_fixtures = (self._of_fixtures.get(name, set()) for name in _fixtures(item))
            self._lines[item.nodeid] = self._now.union(*of_fixtures)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]):
        outer, self._now = self._now, set()
        try:
            return (yield)
        finally:
            self._of_fixtures.setdefault(fixturedef.argname, set()).update(self._now)
            self._now |= outer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        path = self._paths.get(frame.f_code.co_filename)
        if path is None:
            return None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self._now.add((path, frame.f_lineno))
            return line

        return line

    def told(self) -> str:
        if self._failed:
            return "\n".join(self._failed)
        tests = {
            name: {"seconds": self._seconds.get(name, 0.0), "lines": sorted(lines)}
            for name, lines in self._lines.items()
        }
        return json.dumps(tests)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())
