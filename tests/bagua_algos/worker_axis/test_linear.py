"""Linear layers by hand are those of one worker after the other."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from bagua_algos.worker_axis.by_hand import LayersByHand
from bagua_algos.worker_axis.models import StackedModel

NUM_WORKERS = 3


def drawn(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 2, 3)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_are_each_workers_own_and_need_no_copy(shape, has_bias):
    model = drawn(StackedModel(nn.Linear(6, 5, bias=has_bias), NUM_WORKERS))
    x_wb = torch.randn(NUM_WORKERS, *shape, 6, requires_grad=True)
    weights = torch.randn(NUM_WORKERS, *shape, 5)
    own = [x_wb, *model.parameters()]
    y_wb = model(x_wb)
    gradients = torch.autograd.grad(y_wb, own, weights)
    each = [functional.linear(*row) for row in zip(*own, strict=True)]
    expected = torch.autograd.grad(torch.stack(each), own, weights)
    torch.testing.assert_close(y_wb, torch.stack(each))
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other)
        assert gradient.is_contiguous()  # else autograd would copy it


def test_what_all_workers_share_is_each_workers_too():
    x_b, weight_w = torch.randn(4, 6), torch.randn(NUM_WORKERS, 5, 6)
    with LayersByHand():
        of_shared = torch.func.vmap(functional.linear, in_dims=(None, 0))(x_b, weight_w)
        by_shared = torch.func.vmap(functional.linear, in_dims=(0, None))(weight_w, x_b)
    torch.testing.assert_close(of_shared, x_b @ weight_w.mT)
    torch.testing.assert_close(by_shared, weight_w @ x_b.T)


def test_gradients_need_no_copy_where_all_workers_have_the_same_inputs():
    x_b, weight_w = torch.randn(4, 6), torch.randn(NUM_WORKERS, 5, 6, requires_grad=True)
    with LayersByHand():
        y_wb = torch.func.vmap(functional.linear, in_dims=(None, 0))(x_b, weight_w)
    (gradient_w,) = torch.autograd.grad(y_wb.sum(), weight_w)
    torch.testing.assert_close(gradient_w, x_b.sum(0).expand(NUM_WORKERS, 5, 6))
    assert gradient_w.is_contiguous()


def test_a_layer_of_tensors_that_no_worker_owns():
    x_b, weight = torch.randn(4, 6), torch.randn(5, 6)
    with LayersByHand():
        y_wb = torch.func.vmap(lambda bias: functional.linear(x_b, weight) + bias)(torch.ones(3, 5))
    torch.testing.assert_close(y_wb, (x_b @ weight.T + 1).expand(3, 4, 5))


def test_autocast_casts_as_ever():
    model = StackedModel(nn.Linear(6, 5), NUM_WORKERS)
    x_wb = torch.randn(NUM_WORKERS, 4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y_wb = model(x_wb)
        expected = torch.func.vmap(functional.linear)(x_wb, model.module.weight, model.module.bias)
    assert y_wb.dtype == expected.dtype and y_wb.equal(expected)
    assert not y_wb.equal(model(x_wb))
