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


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_what_is_elementwise_is_not(make):
    check_elementwise(make(PARAMETERS), 2)
