"""Layers by hand: embeddings. Linear ones have tests of their own."""

import copy

import pytest
import torch
from torch import nn

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import WAYS, Stacking

NUM_WORKERS = 3


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of embedding_renorm_
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {"padding_idx": 0},
        {"padding_idx": -1},
        {"padding_idx": 2, "scale_grad_by_freq": True},
        {"padding_idx": 1, "max_norm": 1.0, "norm_type": 1.0},
        {"scale_grad_by_freq": True},
        {"max_norm": 1.0},
    ],
)
def test_embeddings_of_all_ways_are_each_worker_s_own(way, options):
    torch.manual_seed(0)
    plain = nn.Embedding(6, 5, **options)
    torch.nn.init.normal_(plain.weight)  # the padding row, too
    model = StackedModel(plain, NUM_WORKERS, stacking=Stacking(way=way, threads=1))
    x_wb = torch.randint(6, (NUM_WORKERS, 4, 7))
    weights = torch.randn(NUM_WORKERS, 4, 7, 5)
    y_wb = model(x_wb)
    (y_wb * weights).sum().backward()
    for worker in range(NUM_WORKERS):
        own = copy.deepcopy(plain)
        y_b = own(x_wb[worker])
        (y_b * weights[worker]).sum().backward()
        torch.testing.assert_close(y_wb[worker], y_b)
        torch.testing.assert_close(model.module.weight[worker], own.weight)
        torch.testing.assert_close(model.module.weight.grad[worker], own.weight.grad)


def test_a_padding_row_that_the_table_lacks_is_refused_as_ever():
    ids_wb, weight_w = torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 3, 5)

    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weight_w[0])

        def forward(self, ids_b):
            return nn.functional.embedding(ids_b, self.weight, 3)

    with pytest.raises(AssertionError, match=r"[Pp]adding_idx must be within"):
        StackedModel(Outside(), 2)(ids_wb)
