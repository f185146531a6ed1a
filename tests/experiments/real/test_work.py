import random
from typing import Any

import numpy as np
import pytest

from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.communication.stacked import StackedCommunicator
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.real import work
from experiments.training.checkpoints.checkpoint import Checkpoints
from experiments.training.result import DivergedError


@pytest.mark.parametrize(
    ("asked", "recorded", "taken"),
    [
        (["streams=auto"], {"streams": 12, "pieces": True}, (12, True)),
        (["streams=auto"], {"streams": 12}, (12, False)),  # older
        (["streams=auto", "pieces=false"], {"streams": 12, "pieces": True}, (12, False)),
        (["streams=auto", "pieces=true"], {"streams": 12, "pieces": False}, (12, True)),
        (["streams=auto", "pieces=true"], {"streams": 1, "pieces": False}, (1, False)),
        (["streams=3"], {"streams": 12, "pieces": True}, (3, None)),
        (["streams=3", "pieces=true"], {"streams": 12}, (3, True)),
    ],
)
def test_a_resumed_run_takes_the_streams_that_were_measured(
    asked, recorded, taken, tmp_path, monkeypatch
):
    for rank in range(4):
        Checkpoints(tmp_path, rank, 4).save(7, recorded | {"halving_doubling_bytes": 0})
    overrides = ["algo=allreduce", *asked, f"resume={tmp_path}"]
    plan = make_plan(compose_config(overrides), tmp_path)
    monkeypatch.setattr(work, "with_streams", lambda workers, *chosen: (workers, chosen))
    recorded = work._recorded(plan, rank=2)
    assert work._transport(plan, StackedCommunicator(4), recorded)[1]["stream_trial"] == taken


@pytest.mark.parametrize("recorded", [0, 32 << 10])
def test_a_resumed_run_takes_the_pattern_that_was_measured(recorded, tmp_path, monkeypatch):
    """By a process group of one worker, which would choose the ring."""
    monkeypatch.setattr(work, "with_pattern", lambda *_: pytest.fail("it was measured again"))
    (tmp_path / "run").mkdir()
    for rank in range(4):
        Checkpoints(tmp_path / "run", rank, 4).save(
            7, {"streams": 1, "halving_doubling_bytes": recorded}
        )
    overrides = ["algo=allreduce", "pattern=auto", f"resume={tmp_path / 'run'}"]
    plan = make_plan(compose_config(overrides), tmp_path)
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as workers:
        communicator, fields = work._transport(plan, workers, work._recorded(plan, rank=2))
        assert communicator.halving_doubling_bytes == recorded
    assert fields["halving_doubling_bytes"] == recorded
    assert fields["pattern_trial"] is None


def test_generators_and_sockets_hear_of_seed_and_streams_before_training(tmp_path, monkeypatch):
    heard = []

    def train(*arguments, **options):
        assert heard == [3]
        assert random.random() == random.Random(5).random()
        assert np.random.random() == np.random.RandomState(5).random_sample()
        raise DivergedError("it trains")

    monkeypatch.setattr(work, "train", train)
    plan = make_plan(
        compose_config(["algo=allreduce", "workers=1", "streams=3", "seed=5"]), tmp_path
    )
    unused: Any = None
    surroundings = work.Surroundings(
        rank=0,
        rendezvous=lambda: file_rendezvous(
            str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
        ),
        environment={},
        meeting=unused,
        share_sockets=heard.append,
    )
    with pytest.raises(DivergedError, match="it trains"):
        work.work(plan, unused, surroundings, lambda row: None)
