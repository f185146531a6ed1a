"""What a run or a measurement was made on and from."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("relaxlab", "torch", "numpy", "numba", "hydra-core", "pyroute2"),
    *("pandas", "pyarrow", "cupy-cuda12x", "cupy-cuda13x"),
)


def environment() -> dict[str, Any]:
    """What this process runs on and from; a fact that cannot be had is None."""
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    changes = _git("status", "--porcelain")
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "host": platform.node(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
        "command": _command(sys.orig_argv[1:]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command(words: list[str]) -> str:
    """As a user would type it again."""
    is_script = words[:1] != [] and Path(words[0]).name == "relaxlab"
    return shlex.join([*(["relaxlab"] if is_script else ["python", *words[:1]]), *words[1:]])


def _git(*arguments: str) -> str | None:
    """What git says of the checkout this file is in; None without git or outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """As the kernel names it; None where it names none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or None
