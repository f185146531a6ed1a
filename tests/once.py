"""What several test processes share: made by the first that needs it, read by the others."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """The folder `name` of this run of the suite, in which `make` has been called once."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all its processes
    folder, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a call that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def compiled_once(command: list[str], source: str) -> Path:
    """The folder in which `command` has compiled `source`, the file that its last word names, once
    for this content: build/ keeps it for later runs of the suite. `said` has what the compiler
    said.

    Raises `AssertionError` where the compiler refuses the source.
    """
    content = "\0".join([*command, _version(command[0]), source])
    folder = ROOT / "build" / "tests" / hashlib.sha256(content.encode()).hexdigest()[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                (made / command[-1]).write_text(source)
                done = subprocess.run(command, cwd=made, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                (made / "said").write_text(done.stdout + done.stderr)
                made.rename(folder)
    return folder


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, text=True).stdout
