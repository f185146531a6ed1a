import torch
from torch import nn

from bagua_algos.worker_axis.models import StackedModel, why_not_stacked
from experiments.predict.memory_traffic import MemoryTraffic


class ByData(nn.Module):
    """Control flow that depends on data, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x_b):
        return self.norm(self.layer(x_b)) * (2 if x_b.sum() > 0 else 1)


def test_a_loop_computes_what_vmap_computes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    at_once, in_turn = StackedModel(model, 3), StackedModel(model, 3, in_a_loop=True)
    x_wb = torch.randn(3, 5, 3)
    torch.testing.assert_close(at_once(x_wb), in_turn(x_wb))
    for stacked in (at_once, in_turn):
        stacked(x_wb).square().sum().backward()
    for ours, theirs in zip(at_once.parameters(), in_turn.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(at_once.buffers(), in_turn.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_model_that_vmap_refuses_is_told_apart_and_trains_in_a_loop():
    model, x_b = ByData(), torch.randn(4, 3)
    assert "vmap" in str(why_not_stacked(model, x_b))
    assert why_not_stacked(nn.Linear(3, 2), x_b) is None
    stacked = StackedModel(model, 2, in_a_loop=True)
    stacked(torch.stack([x_b, -x_b])).sum().backward()
    assert stacked.module.layer.weight.grad.shape == (2, 2, 3)


def test_in_a_loop_the_work_grows_with_the_workers_not_with_their_square():
    def moved(num_workers: int) -> int:
        model = StackedModel(nn.Linear(64, 64), num_workers, in_a_loop=True)
        x_wb = torch.randn(num_workers, 1, 64)
        with MemoryTraffic() as traffic:
            model(x_wb).sum().backward()
        return traffic.num_bytes

    assert moved(32) < 1.1 * 8 * moved(4)
