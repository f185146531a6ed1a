"""The app as a user starts it, and the processes that it makes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "experiments"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = [*COMMAND, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run of 4 workers that takes minutes; returns once it trains."""
    app = subprocess.Popen(
        [*COMMAND, "algo=allreduce", "max_steps=5000", f"hydra.run.dir={folder}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    journal = folder / "metrics.jsonl"

    def trains() -> bool:
        assert app.poll() is None, app.communicate()[0]
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


def process_tree(app: subprocess.Popen[str]) -> tuple[int, list[int]]:
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
