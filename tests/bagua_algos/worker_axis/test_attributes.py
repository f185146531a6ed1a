"""What a model counts in Python is each worker's own count in training, and worker 0's where one
model computes all.
"""

import pytest
import torch
from torch import nn

from bagua_algos.worker_axis.attributes import take_attributes
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import WAYS, Stacking


class Counting(nn.Module):
    """Counts its training passes, in a part of it and in a list."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.layer.count, self.counts = 0, []

    def forward(self, x_b):
        if self.training:
            self.layer.count += 1
            self.counts.append(self.layer.count)
        return self.layer(x_b) * self.layer.count + sum(self.counts)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("has_moved", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_evaluations_count_as_the_training_before_them(way, threads, has_moved):
    plain, x_wb = Counting(), torch.randn(3, 4, 3)
    model = StackedModel(plain, 3, stacking=Stacking(way=way, threads=threads))
    for _ in range(3):
        for _ in range(2):
            expected = torch.stack([plain(x_b) for x_b in x_wb[:1]])
            torch.testing.assert_close(model(x_wb)[:1], expected)
        if has_moved:
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
        plain.eval(), model.eval()
        with model.alike(), torch.no_grad():
            torch.testing.assert_close(model(x_wb)[0], plain(x_wb[0]))
        plain.train(), model.train()


def test_only_numbers_and_texts_are_taken_and_copied():
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.state, other.names = {"seen": [1, 2.0]}, ("a", None)
    other.tensors, other.call = [torch.ones(2)], print
    take_attributes(model, other)
    assert (model.state, model.names) == (other.state, other.names)
    assert model.state is not other.state
    assert not hasattr(model, "tensors") and not hasattr(model, "call")
    other.eval()
    take_attributes(model, other)
    assert model.training  # modes are looked after by themselves
