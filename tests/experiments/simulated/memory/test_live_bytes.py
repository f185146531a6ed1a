"""Storages count as long as they are there."""

import pytest
import torch
from torch import nn

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.simulated.memory.live_bytes import LiveBytes

MB = 1 << 20


def test_storages_count_until_they_are_freed():
    before = torch.zeros(MB // 4)
    with LiveBytes() as live:
        x = before + 1
        y = x.view(2, -1).add_(before.view(2, -1))
        assert live.most == MB
        del x, y
        x = before * 2
        assert live.most == MB
        y = x * 2
        assert live.most == 2 * MB
        del x, y


def test_what_backward_remembers_counts():
    layer, x = nn.Linear(256, 256, bias=False), torch.ones(1024, 256)
    with LiveBytes() as live:
        layer(torch.sigmoid(layer(x))).sum().backward()
    hidden, weights = 1024 * 256 * 4, 256 * 256 * 4
    assert 2 * hidden + weights <= live.most <= 4 * hidden + 2 * weights + 1024


def test_sparse_gradients_are_refused_while_it_counts():
    model = StackedModel(nn.Embedding(5, 3, sparse=True), 1, stacking=Stacking(way="loop"))
    with LiveBytes(), pytest.raises(ValueError, match="make the layer without sparse=True"):
        model(torch.ones(1, 4, dtype=torch.long)).sum().backward()
