"""Workers that stand still: each is the worker by itself that has taken its steps alone."""

import pytest
import torch
from torch import nn

from bagua_algos import Algorithm
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.standing_rows import StandingRows

NUM_WORKERS = 3
STAND = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]]


class Scaled(nn.Module):
    """Parameters of several shapes, one number among them."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 4), nn.Parameter(torch.tensor(0.5))

    def forward(self, x_b):
        return self.layer(x_b) * self.scale


def groups_of(model):
    """Two, of two parameters and of one, with rates of their own."""
    layer, scale = [], []
    for name, parameter in model.named_parameters():
        (scale if name.endswith("scale") else layer).append(parameter)
    return [{"params": scale, "lr": 0.01}, {"params": layer, "lr": 0.1}]


def step(model, optimizer, x_b):
    optimizer.zero_grad()
    model(x_b).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("cls", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Rprop, {}), (torch.optim.Adagrad, {})],
)
def test_in_groups_of_several_parameters_each_worker_goes_on_from_its_last_step(cls, options):
    torch.manual_seed(0)
    model = StackedModel(Scaled(), NUM_WORKERS)
    alone = [Scaled() for _ in range(NUM_WORKERS)]
    for own in alone:
        own.load_state_dict({name: x[0] for name, x in model.module.state_dict().items()})
    optimizers = [cls(groups_of(own), **options) for own in alone]
    optimizer = cls(groups_of(model), **options)
    rows = StandingRows(model, optimizer)
    for standing in STAND:
        x_wb = torch.randn(NUM_WORKERS, 5, 2)
        rows.keep(torch.tensor(standing).bool())
        step(model, optimizer, x_wb)
        for own, its_optimizer, x_b, stands in zip(alone, optimizers, x_wb, standing, strict=True):
            if not stands:
                step(own, its_optimizer, x_b)
    for name, x_w in model.module.named_parameters():
        torch.testing.assert_close(x_w, torch.stack([own.get_parameter(name) for own in alone]))


def test_an_optimizer_steps_as_ever_before_anybody_is_told_to_stand():
    model = StackedModel(Scaled(), NUM_WORKERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    StandingRows(model, optimizer)
    before = model.module.layer.weight.detach().clone()
    step(model, optimizer, torch.ones(NUM_WORKERS, 5, 2))
    assert not (model.module.layer.weight == before).any()


@pytest.mark.parametrize("is_before", [True, False])
def test_an_algorithm_sees_rows_that_stand_as_they_were(is_before):
    seen = []

    class Looking(Algorithm):
        def on_step_end(self, context):
            seen.append(model.module.layer.weight.detach().clone())

    model = StackedModel(Scaled(), NUM_WORKERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = StandingRows(model, optimizer) if is_before else None
    engine = Engine(model, optimizer, Looking(), StackedCommunicator(NUM_WORKERS))
    rows = rows or StandingRows(model, optimizer)
    before = model.module.layer.weight.detach().clone()
    rows.keep(torch.tensor([True, False, True]))
    step(model, optimizer, torch.ones(NUM_WORKERS, 5, 2))
    engine.close()
    assert [(own == old).all().item() for own, old in zip(*seen, before, strict=True)] == [
        *(True, False, True)
    ]
