"""In which order gradients come, and how they come into their buckets."""

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine


class EitherWay(nn.Module):
    """Two layers in a row, either of them first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.is_turned = False

    def forward(self, x):
        return self.one(self.other(x)) if self.is_turned else self.other(self.one(x))


def engine_of(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Engine(model, optimizer, AllReduce(), StackedCommunicator(1), **options)


def test_the_order_is_that_of_the_last_pass():
    model = EitherWay()
    engine = engine_of(model)
    for model.is_turned in (False, True, False):
        model(torch.ones(1, 2)).sum().backward()
        last, first = model.other.weight, model.one.weight
        expected = [first, last] if model.is_turned else [last, first]
        assert all(a is b for a, b in zip(engine.backward.order, expected, strict=True))


def test_every_parameter_has_a_storage_of_its_own_in_the_buckets_memory():
    """So a file of one holds no other."""
    model = EitherWay()
    engine = engine_of(model)
    [bucket] = engine.context.buckets
    for parameter in model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4
    bucket.weights.fill_(7.0)
    assert all(parameter.eq(7.0).all() for parameter in model.parameters())


@pytest.mark.parametrize("num_before", [0, 1])
def test_gradients_of_gradients_are_refused_and_training_goes_on(num_before):
    """Those of torch.autograd.grad are not."""
    model, plain = EitherWay(), EitherWay()
    plain.load_state_dict(model.state_dict())
    engine = engine_of(model)
    x = torch.tensor([[1.0, 2.0]])
    for _ in range(num_before):
        model(x).square().sum().backward()
    with pytest.raises(ValueError, match=r"create_graph=True.* torch.autograd.grad\(loss, "):
        model(x).square().sum().backward(create_graph=True)
    for one in (model, plain):
        one.zero_grad(set_to_none=False)
        loss = one(x).square().sum()
        gradients = torch.autograd.grad(loss, list(one.parameters()), create_graph=True)
        (loss + sum(gradient.square().sum() for gradient in gradients)).backward()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad) and parameter.grad.grad_fn is None
    engine.close()


def test_gradients_in_and_outside_of_a_bucket_both_come_into_it():
    """A script has given one parameter a gradient of its own, to which the pass adds."""
    model = EitherWay()
    engine = engine_of(model)
    [bucket] = engine.context.buckets
    x = torch.tensor([[1.0, 2.0]])
    model(x).sum().backward()  # from here on gradients are parts of the bucket
    for own in (model.one.weight, model.other.weight):
        for parameter in model.parameters():
            parameter.grad.zero_()
        own.grad = torch.ones(2, 2)
        model(x).sum().backward()
        plain = EitherWay()
        plain.load_state_dict(model.state_dict())
        plain(x).sum().backward()
        expected = {"one": plain.one.weight.grad, "other": plain.other.weight.grad}
        for name, gradient in expected.items():
            parameter = getattr(model, name).weight
            more = 1.0 if parameter is own else 0.0
            place = list(map(id, bucket.parameters)).index(id(parameter))
            torch.testing.assert_close(parameter.grad, gradient + more)
            torch.testing.assert_close(bucket.gradient_views()[place], gradient + more)
