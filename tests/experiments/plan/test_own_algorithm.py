"""What the app takes an author's own algorithm for, where its class says nothing of itself."""

from dataclasses import dataclass

import pytest
import torch
from torch.amp import GradScaler

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.plan import Plan
from experiments.simulated.memory.algorithm_trial import try_algorithm
from experiments.training.distributed import distribute

WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Silent(Algorithm):
    """Leaves workers to themselves."""


@pytest.fixture
def plan_of(tmp_path, monkeypatch):
    folder = tmp_path / "conf" / "algo"
    folder.mkdir(parents=True)
    (folder / "silent.yaml").write_text(f"_target_: {__name__}.Silent")
    monkeypatch.chdir(tmp_path)

    def make(*words: str) -> Plan:
        common = ["algo=silent", "model=mlp", f"workers={WORKERS}", "net=none", *words]
        return make_plan(compose_config(common), tmp_path / "run")

    return make


@pytest.mark.parametrize("word", ["backend=sim", "checkpoint_every=5", "streams=2"])
def test_it_may_be_simulated_and_resumed_and_have_streams(word, plan_of):
    plan = plan_of("backend=gloo", word)
    assert isinstance(plan.algorithm, Silent)


def test_each_simulated_worker_has_a_state_of_the_optimizer(plan_of):
    plan = plan_of("backend=sim", "optim=adam")
    weights = sum(p.nbytes for p in plan.model.parameters())
    # weights, gradients, two moments
    kept = try_algorithm(plan).between_steps
    assert kept == pytest.approx(WORKERS * 4 * weights, rel=1e-3)


def test_simulated_workers_may_have_gradients_that_differ(plan_of):
    plan = plan_of("backend=sim")
    model = StackedModel(plan.model, WORKERS)
    optimizer = plan.make_optimizer(model.parameters())
    workers = StackedCommunicator(WORKERS)
    engine = distribute(plan, model, optimizer, workers, GradScaler("cpu", enabled=False))
    x = torch.stack([torch.ones(3, 1, 28, 28), torch.zeros(3, 1, 28, 28)])
    model(x).square().sum().backward()
    optimizer.step()
    engine.close()
    assert any(not torch.equal(*p) for p in model.parameters())
