"""Simulated workers at their own speeds that average asynchronously, against an event oracle."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR

from bagua_algos import AsyncModelAverage
from bagua_algos.communication.communicator import Operation
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.standing_rows import StandingRows
from experiments.simulated.clocks import SimulatedClocks
from experiments.simulated.pace import OwnPace
from experiments.tasks.batches import Batches
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.timeline.compute import ComputeTimes, Trace
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline
from tests.experiments.simulated.profiles import profile_of_a_second

NUM_STEPS = 40
DUE = (7, 8, 25)
"""An evaluation is after so many steps of the last worker."""
INTERVAL_S = 2.5
STEP_S = 1.0
NET = NetworkCondition(rate_mbit=100, delay_ms=300)  # a round takes a step or two

OPTIMIZERS = {
    "sgd": lambda parameters: SGD(parameters, lr=0.02, momentum=0.5),
    "adam": lambda parameters: Adam(parameters, lr=0.05),
    "adamw": lambda parameters: AdamW(parameters, lr=0.05, weight_decay=0.1),
}
SCHEDULES = {
    "constant": lambda optimizer: ConstantLR(optimizer, factor=1.0, total_iters=0),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=NUM_STEPS),
}


@dataclass
class Worker:
    """One worker of the oracle: a weight that its own optimizer pulls towards a target."""

    target: float
    factors: list[float]
    weight: nn.Parameter
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    at_s: float = 0.0
    steps: int = 0
    began_s: float | None = None
    num_rounds: int = 0
    is_in_flight: bool = False

    @property
    def ends_s(self):
        return self.at_s + STEP_S * self.factors[self.steps]

    @property
    def x(self):
        return self.weight.item()

    def step(self):
        self.at_s = self.ends_s
        self.steps += 1
        self.weight.grad = self.weight.detach() - self.target
        self.optimizer.step()
        self.schedule.step()


class Round:
    """Snapshots of all workers, their mean, and when it has travelled."""

    def __init__(self):
        self.snapshots, self.done_s = {}, np.inf

    @property
    def mean(self):
        return np.mean([x for x, _ in self.snapshots.values()])


def oracle(workers, round_s):
    """Whoever ends a step first goes first. Returns when the last worker has done each of `DUE`
    steps, and all workers' steps and weights at that moment.
    """
    rounds = [Round() for _ in range(NUM_STEPS)]
    seen, due = [], list(DUE)
    while left := [w for w in workers if w.steps < NUM_STEPS]:
        worker = min(left, key=lambda w: w.ends_s)
        now_s = max(w.at_s for w in workers)
        if due and min(w.steps for w in workers) >= due[0] and worker.ends_s > now_s:
            seen.append((now_s, [w.steps for w in workers], [w.x for w in workers]))
            due.pop(0)
        worker.step()
        last = rounds[worker.num_rounds - 1]
        if worker.is_in_flight and last.done_s <= worker.at_s:
            worker.weight.data += last.mean - last.snapshots[id(worker)][0]
            worker.is_in_flight = False
        worker.began_s = worker.at_s if worker.began_s is None else worker.began_s
        if not worker.is_in_flight and worker.at_s - worker.began_s >= INTERVAL_S:
            current = rounds[worker.num_rounds]
            worker.num_rounds, worker.began_s, worker.is_in_flight = (
                worker.num_rounds + 1,
                worker.at_s,
                True,
            )
            current.snapshots[id(worker)] = worker.x, worker.at_s
            if len(current.snapshots) == len(workers):
                current.done_s = max(at_s for _, at_s in current.snapshots.values()) + round_s
    end_s = max(w.at_s for w in workers)
    return [*seen, (end_s, [w.steps for w in workers], [w.x for w in workers])]


@dataclass
class PulledStep:
    """In place of a training step on examples."""

    distributed: Engine
    optimizer: torch.optim.Optimizer
    targets: torch.Tensor
    schedule: torch.optim.lr_scheduler.LRScheduler

    def __call__(self, indices):
        self.optimizer.zero_grad()
        outputs_w = self.distributed.model(torch.ones(len(self.targets), 1, 1)).flatten()
        losses_w = (outputs_w - self.targets) ** 2 / 2
        losses_w.sum().backward()
        self.optimizer.step()
        self.schedule.step()
        return losses_w.detach()


def timeline_of(factors):
    """Of workers whose steps take so many times `STEP_S`, `[steps, w]`."""
    num_workers = factors.shape[1]
    compute = ComputeTimes(
        forward_s=0.5,
        backward_s=0.4,
        bucket_ready_s=(0.4,),
        optimizer_s=0.1,
        variation=Trace(steps=factors.tolist()),
    )
    return Timeline(CostModel(NET, num_workers), compute)


def at_own_pace(factors, make_optimizer, make_schedule=SCHEDULES["constant"]):
    """Three workers' clocks, step, batches and pace."""
    clocks = SimulatedClocks(timeline_of(factors), profile_of_a_second())
    communicator = StackedCommunicator(3, clocks, clocks.now_s)
    model = StackedModel(nn.Linear(1, 1, bias=False), 3)
    optimizer = make_optimizer(model.parameters())
    rows = StandingRows(model, optimizer)
    algorithm = AsyncModelAverage(interval_ms=1e3 * INTERVAL_S)
    engine = Engine(model, optimizer, algorithm, communicator, step_observer=clocks)
    targets = torch.tensor([0.0, 1.0, 5.0])
    batches = Batches(num_examples=9, world_size=3, ranks=(0, 1, 2), batch_size=1, seed=0)
    take_step = PulledStep(engine, optimizer, targets, make_schedule(optimizer))
    return clocks, take_step, batches, OwnPace(clocks, rows)


@pytest.mark.parametrize("speeds", ["equal", "straggler", "jitter"])
@pytest.mark.parametrize(
    ("optim", "schedule"),
    [("sgd", "constant"), ("sgd", "cosine"), ("adam", "constant"), ("adamw", "cosine")],
)
def test_every_worker_sees_the_others_as_they_are_at_that_moment_whoever_evaluates_them(
    speeds, optim, schedule
):
    num_workers = 3
    factors = {
        "equal": np.ones((NUM_STEPS, num_workers)),
        "straggler": np.tile([3.1, 1.0, 1.01], (NUM_STEPS, 1)),
        "jitter": np.random.default_rng(0).lognormal(0, 0.4, (NUM_STEPS, num_workers)),
    }[speeds]
    clocks, take_step, batches, pace = at_own_pace(factors, OPTIMIZERS[optim], SCHEDULES[schedule])
    engine, targets = take_step.distributed, take_step.targets
    start = next(engine.model.parameters()).detach().flatten().tolist()
    done, seen = 0, []
    for due in (*DUE, NUM_STEPS):
        with clocks.running():
            done += sum(1 for _ in pace(batches, take_step, done, due, NUM_STEPS))
        assert done >= due
        engine.stand_still()
        with engine.consensus() as spread:
            assert spread > 0
        weights = next(engine.model.parameters()).detach().flatten().tolist()
        seen.append((float(clocks.timeline.time_s.max()), pace.steps_w().tolist(), weights))
    assert done == NUM_STEPS

    num_bytes = 4 * engine.context.buckets[0].weights.shape[1]
    operation = Operation(name="all_reduce_mean", num_bytes=num_bytes, ranks=(0, 1, 2))
    alone = timeline_of(factors)
    alone.on_operation(operation)
    round_s = float(alone.time_s.max())
    assert 0.3 < round_s / STEP_S < 30
    workers = []
    for target, x, own_factors in zip(targets.tolist(), start, factors.T, strict=True):
        weight = nn.Parameter(torch.tensor([x]))
        own = OPTIMIZERS[optim]([weight])
        worker = Worker(target, [*own_factors, 1.0], weight, own, SCHEDULES[schedule](own))
        workers.append(worker)
    expected = oracle(workers, round_s)
    assert clocks.timeline.time_s.tolist() == pytest.approx([w.at_s for w in workers])
    assert engine.context.state.num_rounds.min() > 3
    assert [steps for _, steps, _ in seen] == [steps for _, steps, _ in expected]
    for (at_s, _, weights), (expected_s, _, expected_weights) in zip(seen, expected, strict=True):
        assert at_s == pytest.approx(expected_s)
        assert weights == pytest.approx(expected_weights, rel=1e-4, abs=1e-5)


def test_standing_rows_keep_weights_buffers_and_moments():
    model = StackedModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = StandingRows(model, optimizer)

    def step(standing):
        before = {name: x.clone() for name, x in model.state_dict().items()}
        rows.keep(torch.tensor(standing))
        optimizer.zero_grad()
        model(torch.randn(3, 4, 2)).square().sum().backward()
        optimizer.step()
        for name, x in model.state_dict().items():
            for worker, stands in enumerate(standing):
                moved = not x[worker].equal(before[name][worker])
                assert moved != stands or "bias" in name, (name, worker)

    torch.manual_seed(0)
    step([False, True, False])
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert all(not m[1].any() and m[0].any() for m in momenta if m.dim() > 2)
    step([True, False, False])
    step([False, False, False])


def test_an_sgd_whose_first_step_differs_is_refused():
    model = StackedModel(nn.Linear(2, 3), 3)
    groups = [{"params": [p]} for p in model.parameters()]
    groups[1] |= {"momentum": 0.9, "dampening": 0.5}
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(ValueError, match=r"dampening leaves out .*: set dampening to 0"):
        StandingRows(model, optimizer)
    groups[1]["momentum"] = 0.0
    StandingRows(model, torch.optim.SGD(groups, lr=0.1))


class Replacing(torch.optim.SGD):
    """Momentum that is another tensor after every step."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].get("momentum", torch.zeros_like(p))
            self.state[p]["momentum"] = 0.9 * momentum + p.grad
            p.sub_(0.1 * self.state[p]["momentum"])


LATE = r"^LateMean keeps 'mean' only from a later step on, .*: choose another optimizer$"


class LateMean(torch.optim.SGD):
    """Keeps a mean of the weights from its second step on."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["num_steps"] = state.get("num_steps", 0) + 1
            if state["num_steps"] > 1:
                state["mean"] = (state.get("mean", p) + p) / 2


def test_an_optimizer_that_keeps_something_only_from_a_later_step_is_refused():
    model = StackedModel(nn.Linear(4, 1, bias=False), 3)
    (weight,) = model.parameters()
    optimizer = LateMean(model.parameters(), lr=0.1)
    rows = StandingRows(model, optimizer)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    rows.keep(torch.tensor([False, True, False]))
    with pytest.raises(ValueError, match=LATE):
        optimizer.step()


def test_a_run_at_own_pace_ends_with_that_sentence():
    factors = np.tile([3.1, 1.0, 1.0], (NUM_STEPS, 1))
    clocks, take_step, batches, pace = at_own_pace(factors, lambda p: LateMean(p, lr=0.1))
    with pytest.raises(UserError, match=LATE), clocks.running():
        list(pace(batches, take_step, 0, 5, NUM_STEPS))


@pytest.mark.parametrize("cls", [Replacing, torch.optim.Rprop, torch.optim.Adagrad])
def test_a_standing_worker_keeps_its_part_of_the_optimizers_state(cls):
    options = {"lr": 0.1} | ({"initial_accumulator_value": 2.0} if "Ada" in cls.__name__ else {})
    model = StackedModel(nn.Linear(4, 1, bias=False), 3)
    (weight,) = model.parameters()
    alone = [nn.Parameter(own.detach().clone()) for own in weight]
    optimizers = [cls([own], **options) for own in alone]
    optimizer = cls(model.parameters(), **options)
    rows = StandingRows(model, optimizer)
    gradients = torch.randn(6, *weight.shape, generator=torch.Generator().manual_seed(0))
    stand = torch.tensor([[0, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]]).bool()
    for gradient, standing_w in zip(gradients, stand, strict=True):
        rows.keep(standing_w)
        weight.grad = gradient.clone()
        optimizer.step()
        for own, its_optimizer, g, stands in zip(
            alone, optimizers, gradient, standing_w, strict=True
        ):
            if not stands:
                own.grad = g.clone()
                its_optimizer.step()
        assert torch.equal(weight.detach(), torch.stack([own.detach() for own in alone]))
