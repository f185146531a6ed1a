import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests import app
from tests.paths import ROOT

COMMAND = [sys.executable, "-m", "tests.netsim.scenarios"]


@cache
def run_scenario(name: str) -> Any:
    finished = app.run(name, module="tests.netsim.scenarios", limit_s=250, strict=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture
def scenario() -> Callable[[str], Any]:
    """Runs a function of `tests.netsim.scenarios` in a process of its own; its result."""
    if reason := run_scenario("permitted"):
        pytest.skip(reason)
    return run_scenario


@pytest.fixture
def waiting_network(scenario):
    """A network that waits to be killed: the launcher, and [launcher, hub, *workers]' pids."""
    command = [*COMMAND, "wait_to_be_killed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        yield launcher, json.loads(launcher.stdout.readline())
        launcher.kill()
