"""The workers' network while it is made and proven: who dies is named, and nothing is left."""

import os
import signal
import time

import pytest
from torch import Tensor, nn

from experiments.real.failures import RunFailedError
from experiments.real.network import DIED, WorkersNetwork
from experiments.runs.load import load_rows
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from tests import app
from tests.busy_host import may_be_slowed

pytestmark = pytest.mark.root

NET = NetworkCondition(rate_mbit=100)


@pytest.fixture
def network():
    made = WorkersNetwork(NET, 2)
    try:
        made.await_made()
    except NamespaceError as error:
        made.end()
        pytest.skip(str(error))
    yield made
    below = [*app.children(os.getpid())]
    hub = made._hub_pid
    made.end()
    assert hub in below and not app.is_running(hub)
    app.wait_for(lambda: not [k for k in made._keepers if app.is_running(k)], 60, "end of keepers")


def test_a_keeper_that_dies_is_named(network):
    os.kill(network._keepers[1], signal.SIGKILL)
    with pytest.raises(RunFailedError, match="link of worker 1 was killed by SIGKILL"):
        network.await_proof()


def test_a_hub_that_dies_is_named(network):
    os.kill(network._hub_pid, signal.SIGKILL)
    with pytest.raises(RunFailedError, match=DIED):
        network.await_proof()


def test_what_no_network_can_be_is_refused_before_it_is_made():
    made = WorkersNetwork(NetworkCondition(workers={9: {"rate_mbit": 10}}), 2)
    with pytest.raises(ValueError, match="9"):
        made.await_made()
    made.end()


def test_a_network_whose_proof_would_take_minutes_is_refused_before_it_is_made():
    made = WorkersNetwork(NetworkCondition(delay_ms=270_000), 2)
    with pytest.raises(ValueError, match=r"^delay_ms makes round trips of 540 s"):
        made.await_made()
    made.end()


class SlowToEvaluate(nn.Linear):
    """Takes a fifth of a second for a batch that it is not trained with."""

    def __init__(self) -> None:
        super().__init__(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Of images `[b, 784]`."""
        if not self.training:
            time.sleep(0.2)
        return super().forward(x.flatten(1))


@may_be_slowed
def test_the_networks_time_is_that_of_the_training_clock(tmp_path):
    """Evaluations take longer than until the network changes, and the steps far less."""
    words = ["algo=allreduce", "workers=2", "max_steps=12", "eval_every=1", "log_every=1"]
    words += ["net=none", "net.schedule=[{at_s: 1, delay_ms: 500}]"]
    words += [f"model._target_={__name__}.SlowToEvaluate", f"hydra.run.dir={tmp_path}"]
    ended = app.run(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = app.summary(tmp_path)
    assert record["duration_s"] > 3, record
    rows = [row for row in load_rows(tmp_path) if row.kind == "step"]
    assert rows[-1].time_s < 1
