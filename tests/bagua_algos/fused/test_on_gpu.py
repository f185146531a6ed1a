"""Fused optimizers on a GPU: the plain ones' bits there."""

import pytest
import torch

from bagua_algos import fuse_optimizer
from tests.bagua_algos.fused.settings import (
    SETTINGS,
    assert_same,
    make,
    make_parameters,
    set_gradients,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_hundred_steps(setting):
    ours, theirs = make_parameters("cuda"), make_parameters("cuda")
    fused, plain = fuse_optimizer(make(setting, ours)), make(setting, theirs)
    for step in range(100):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(fused, plain)
