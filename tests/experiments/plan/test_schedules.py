"""Learning rates that rise and fall."""

import pytest
import torch

from experiments.plan.schedules import rise_and_fall

HALF = {"linear": 0.55, "cosine": 0.55}  # of both the middle, above a tenth that is left


@pytest.mark.parametrize("shape", HALF)
def test_rates_rise_then_fall(shape):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = rise_and_fall(optimizer, warmup=3, steps=11, shape=shape, least=0.1)
    rates = []
    for _ in range(13):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[7] == pytest.approx(2 * HALF[shape]) and rates[11:] == pytest.approx([0.2, 0.2])
    assert rates[3:12] == sorted(rates[3:12], reverse=True)
    with pytest.raises(ValueError, match=r"schedule\.shape is one of linear, cosine"):
        rise_and_fall(optimizer, warmup=0, steps=1, shape="square")
