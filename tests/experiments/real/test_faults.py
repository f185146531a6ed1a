"""Whatever is killed, all has ended soon, nothing is left, and the record is readable."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from experiments.runs.load import load_metrics, load_runs
from netsim.conditions.condition import NetworkCondition
from netsim.proof import tcp_rate
from tests import app

LIMIT_S, SOON_S = 60, 30
FIRST_ADDRESS = "10.0.0.1"


pytestmark = [
    pytest.mark.root,
]


def host_links() -> list[str]:
    table = Path("/proc/net/dev").read_text().splitlines()
    return sorted(line.split(":")[0] for line in table if ":" in line)


def leftovers(pids: list[int]) -> list[int]:
    return [pid for pid in pids if app.is_running(pid)]


@pytest.mark.parametrize(
    ("victim", "sent", "code", "reason"),
    [
        ("launcher", signal.SIGINT, 130, "stopped by Ctrl-C (SIGINT)"),
        ("launcher", signal.SIGTERM, 143, "stopped by SIGTERM"),
        ("launcher", signal.SIGKILL, -9, "the run has not ended"),
        ("hub", signal.SIGKILL, 1, "the hub of the workers' network died"),
        ("crew", signal.SIGKILL, 1, "the process that has forked the workers died"),
        ("switch", signal.SIGKILL, 1, "The switch"),
        ("worker 2", signal.SIGKILL, 1, "worker 2 was killed by SIGKILL"),
        ("worker 0", signal.SIGKILL, 1, "worker 0 was killed by SIGKILL"),
        ("worker 1", signal.SIGSTOP, 1, "worker 1 is silent"),
    ],
)
def test_whatever_is_killed(tmp_path, victim, sent, code, reason):
    links = host_links()
    running = app.start(tmp_path, "cluster.timeout_s=4", "net=none", "net.backend=switch")
    pids = app.roles(running.pid)
    assert [*pids][-5:] == ["worker 0", "worker 1", "worker 2", "worker 3", "switch"]
    own = os.sched_getscheduler(0)
    policy = os.sched_getscheduler(pids["worker 3"])
    assert policy == (os.SCHED_BATCH if own == os.SCHED_OTHER else own)
    started_s = time.monotonic()
    os.kill(pids[victim], sent)
    ended = running.end(LIMIT_S)
    app.wait_for(lambda: not leftovers(list(pids.values())), LIMIT_S, "end of all processes")
    assert time.monotonic() - started_s < SOON_S

    output = ended.stdout + ended.stderr
    assert ended.returncode == code, output
    record = app.summary(tmp_path)
    assert record["status"] == "failed"
    assert reason in record["reason"]
    if sent != signal.SIGKILL or victim != "launcher":
        assert record["reason"] in output  # a person reads it too
    assert "Traceback" not in output
    assert host_links() == links

    runs, metrics = load_runs(tmp_path), load_metrics(tmp_path)
    assert list(runs["status"]) == ["failed"]
    assert runs.attrs["problems"] == [] == metrics.attrs["problems"]
    assert metrics["bytes_sent"].max() > 0


def test_a_loss_that_is_no_number_ends_the_run_as_diverged(tmp_path):
    ended = app.run(
        "algo=bytegrad", "net=none", "optim.lr=1e30", f"hydra.run.dir={tmp_path}", "max_steps=5000"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr  # a result, not an error
    record = app.summary(tmp_path)
    assert record["status"] == "diverged"
    assert "the loss is nan at step" in record["reason"]
    assert record["time_to_accuracy_s"] is None


def breaks_one_probe(**fields: Any) -> NetworkCondition:
    """A network; when it has been made, worker 0's next probe breaks off."""
    tcp_rate.meet = break_off
    return NetworkCondition(**fields)


def break_off(incoming: socket.socket, outgoing: socket.socket, meet=tcp_rate.meet) -> None:
    tcp_rate.meet = meet
    if incoming.getsockname()[0] == FIRST_ADDRESS:
        raise ConnectionResetError("on purpose")
    meet(incoming, outgoing)


def test_a_probe_that_breaks_off_is_tried_again(tmp_path):
    net = ["net=lan_1g", f"net._target_={__name__}.breaks_one_probe"]
    ended = app.run("algo=allreduce", *net, "max_steps=2", f"hydra.run.dir={tmp_path}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(app.summary(tmp_path)["links"]) == 4


class FailsInTraining(nn.Sequential):
    """Of MNIST; no trial before a run finds what is wrong with it."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("not while it trains")
        return super().forward(x)


def test_an_error_in_a_worker_is_shown_with_its_traceback(tmp_path):
    model = [f"model._target_={__name__}.FailsInTraining"]
    ended = app.run("algo=allreduce", "net=none", *model, f"hydra.run.dir={tmp_path}")
    assert ended.returncode == 1
    assert "Traceback" in ended.stdout
    reason = app.summary(tmp_path)["reason"]
    assert "RuntimeError: not while it trains" in reason
    assert reason in ended.stdout
