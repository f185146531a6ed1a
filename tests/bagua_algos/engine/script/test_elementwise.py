from functools import partial

import pytest
import torch

from bagua_algos.engine.script.elementwise import check_elementwise


class Lamb(torch.optim.Adam):
    """By its name."""


PARAMETERS = [torch.nn.Parameter(torch.zeros(2, 3))]


@pytest.mark.parametrize("make", [Lamb, torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Muon])
def test_what_looks_at_whole_tensors_is_refused_for_stacked_workers(make):
    name = make.__name__
    with pytest.raises(ValueError, match=f"{name} looks at whole tensors, and 2 simulated"):
        check_elementwise(make(PARAMETERS), 2)
    check_elementwise(make(PARAMETERS), 1)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_what_overlooks_gaps_between_workers_is_refused_for_them(make):
    with pytest.raises(ValueError, match="2 simulated workers' weights are such rows"):
        check_elementwise(make(PARAMETERS, lr=0.1, fused=True), 2)
    check_elementwise(make(PARAMETERS, lr=0.1, fused=True), 1)


FOREACH = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)


@pytest.mark.parametrize("make", [FOREACH, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_is_elementwise_is_not(make):
    check_elementwise(make(PARAMETERS), 2)
