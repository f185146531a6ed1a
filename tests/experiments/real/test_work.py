import pytest

from bagua_algos.communication.stacked import StackedCommunicator
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.real import work
from experiments.training.checkpoint import Checkpoints


@pytest.mark.parametrize(("asked", "taken"), [("auto", 12), ("3", 3)])
def test_a_resumed_run_takes_the_streams_that_were_measured(asked, taken, tmp_path, monkeypatch):
    for rank in range(4):
        Checkpoints(tmp_path, rank, 4).save(7, {"streams": 12, "halving_doubling_bytes": 0})
    overrides = ["algo=allreduce", f"streams={asked}", f"resume={tmp_path}"]
    plan = make_plan(compose_config(overrides), tmp_path)
    monkeypatch.setattr(work, "with_streams", lambda workers, streams: (workers, streams))
    recorded = work._recorded(plan, rank=2)
    assert work._transport(plan, StackedCommunicator(4), recorded)[1]["stream_trial"] == taken
