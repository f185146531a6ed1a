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
def scenario(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Runs a function of `tests.netsim.scenarios` in a process of its own; its result. Several
    tests read one result, but a test that is tried again (`tests.busy_host`) has it measured anew.
    """
    if reason := run_scenario("permitted"):
        pytest.skip(reason)
    is_again = getattr(request.node, "execution_count", 1) > 1
    return run_scenario.__wrapped__ if is_again else run_scenario


@pytest.fixture
def waiting_network(scenario):
    """A network that waits to be killed: the launcher, and [launcher, hub, *workers]' pids."""
    command = [*COMMAND, "wait_to_be_killed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        yield launcher, json.loads(launcher.stdout.readline())
        launcher.kill()
