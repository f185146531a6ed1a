"""In which order gradients come, and how they come into their buckets."""

import gc

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce, TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.backward import BackwardTracker
from bagua_algos.engine.bucket import build_buckets
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel


class EitherWay(nn.Module):
    """Two layers in a row, either of them first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.is_turned = False

    def forward(self, x):
        return self.one(self.other(x)) if self.is_turned else self.other(self.one(x))


def engine_of(model, algorithm=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Engine(model, optimizer, algorithm or AllReduce(), StackedCommunicator(1), **options)


def test_the_order_is_that_of_the_last_pass():
    model = EitherWay()
    engine = engine_of(model)
    for model.is_turned in (False, True, False):
        model(torch.ones(1, 2)).sum().backward()
        last, first = model.other.weight, model.one.weight
        expected = [first, last] if model.is_turned else [last, first]
        assert all(a is b for a, b in zip(engine.backward.order, expected, strict=True))


def test_before_the_first_pass_a_gradient_of_the_scripts_own_is_refused_and_zeros_are_not():
    model = EitherWay()
    engine = engine_of(model)
    optimizer = engine.context.optimizer
    model.one.weight.grad = torch.zeros(2, 2)
    optimizer.step()
    model.one.weight.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"^'one.weight' .* that no backward pass of"):
        optimizer.step()
    engine.close()


def add(parameter):
    parameter.grad.add_(1.0)


def put_memory(parameter):
    parameter.grad.data = torch.ones(2, 2)


def put_another(parameter):
    parameter.grad = torch.ones(2, 2)


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("write", [add, put_memory, put_another])
@pytest.mark.parametrize("name", ["one", "other"])
def test_a_gradient_that_a_script_has_written_since_the_last_step_is_foreign(name, write, move):
    """Into its place in the bucket, or elsewhere; also where parameters were laid out anew."""
    model = EitherWay()
    engine = engine_of(model, bucket_bytes=1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        engine.context.optimizer.step()
    if move:
        engine.relayout([tuple(model.parameters())])
    assert engine.backward.foreign_gradient() is None
    for other in {"one", "other"} - {name}:
        getattr(model, other).weight.grad = None
    parameter = getattr(model, name).weight
    write(parameter)
    assert engine.backward.foreign_gradient() is parameter
    parameter.grad.zero_()
    assert engine.backward.foreign_gradient() is None
    engine.close()


def after_a_pass(model, pass_through=None):
    """An engine of an algorithm that keeps a part of the gradients of the pass."""
    engine = engine_of(model, TopK(ratio=0.5), bucket_bytes=1)
    (pass_through or model)(torch.ones(1, 2)).sum().backward()
    return engine


def are_first(engine, parameter=None):
    """Whether a pass goes on from nothing: where values are looked at, and where not."""
    tracker = engine.backward
    return [tracker.is_first(parameter, looks_at_values=looks) for looks in (True, False)]


def test_a_pass_goes_on_from_gradients_unless_all_are_gone_or_zeros():
    model = EitherWay()
    engine = after_a_pass(model)
    one, other = model.one.weight, model.other.weight
    assert are_first(engine) == [False, False]
    one.grad.zero_()
    assert are_first(engine) == [False, False]
    other.grad.zero_()
    assert are_first(engine) == [True, False] and engine.backward.is_thrown_away(None)
    one.grad = None
    assert are_first(engine) == [True, False]
    other.grad = None
    assert are_first(engine) == [True, True] and engine.backward.is_thrown_away(None)
    engine.close()


def test_a_pass_goes_on_from_one_gradient_of_two():
    model = EitherWay()
    engine = after_a_pass(model)
    model.one.weight.grad = torch.ones(2, 2)  # a new one, which this pass has made
    assert are_first(engine, model.one.weight) == [False, False]
    model.one.weight.grad = None
    assert are_first(engine) == [False, False]
    engine.close()


def test_what_a_pass_adds_is_told_from_what_a_script_has_written():
    """Where the other gradient is zero, since the pass before has not used its parameter."""
    model = EitherWay()
    engine = after_a_pass(model, model.one)
    one = model.one.weight
    one.grad.add_(1.0)
    assert are_first(engine, one) == [False, False]
    one.grad.zero_()
    assert are_first(engine) == [True, False]
    engine.close()


def test_the_only_gradient_of_a_model_is_thrown_away_before_another_is_added():
    model = nn.Linear(2, 2, bias=False)
    engine = after_a_pass(model)
    model.weight.grad.add_(1.0)
    assert are_first(engine, model.weight) == [False, False]
    assert not engine.backward.is_thrown_away(model.weight)
    model.weight.grad.zero_().add_(1.0)
    assert are_first(engine, model.weight) == [True, False]
    assert engine.backward.is_thrown_away(model.weight)
    engine.close()


def test_before_the_first_pass_another_models_optimizer_may_step():
    """Of gradients that are kept it has used none."""
    model, other = EitherWay(), nn.Linear(2, 2)
    engine = engine_of(model, TopK(ratio=0.5))
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    model(torch.ones(1, 2)).sum().backward()
    engine.context.optimizer.step()
    assert engine.context.step == 1
    engine.close()


def test_of_two_models_of_one_pass_the_first_to_end_is_known():
    """Others may have another order, so only the first one's buckets may be left to who waits."""
    models = [EitherWay(), EitherWay()]
    engines = [engine_of(model) for model in models]
    for last, first in (engines, engines[::-1]):
        sums = [engine.model(torch.ones(1, 2)).sum() for engine in (last, first)]
        sum(sums).backward()  # from the last forward to the first
        assert (first.backward.ends_first, last.backward.ends_first) == (True, False)
    engines[0].empty_backward()
    engines[1].empty_backward()
    assert all(engine.backward.ends_first for engine in engines)
    for engine in engines:
        engine.close()


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


@pytest.mark.parametrize("put", [put_another, put_memory])
def test_gradients_in_and_outside_of_a_bucket_both_come_into_it(put):
    """A script has given one parameter a gradient of its own, to which the pass adds."""
    model = EitherWay()
    engine = engine_of(model)
    [bucket] = engine.context.buckets
    x = torch.tensor([[1.0, 2.0]])
    model(x).sum().backward()  # from here on gradients are parts of the bucket
    for own in (model.one.weight, model.other.weight):
        for parameter in model.parameters():
            parameter.grad.zero_()
        put(own)
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


class Listener:
    def hear(self, parameter):
        pass


@pytest.mark.parametrize("has_hook", [False, True])
def test_a_bucket_travels_as_soon_as_its_gradients_are_final(has_hook):
    """A hook of the script's own may come after ours, so it is final when the next one is there."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    buckets = build_buckets(parameters, num_held=1, world_size=1, bucket_bytes=1)
    launched, listener = [], Listener()
    tracker = BackwardTracker(buckets, lambda bucket: launched.append(bucket.index))
    tracker.attach(listener.hear)
    for parameter in parameters:
        parameter.grad = torch.ones(2)
        if has_hook:
            parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    tracker.begin()
    for index, bucket in enumerate(buckets):
        tracker.gradient_ready(bucket.parameters[0])
        assert launched == list(range(index if has_hook else index + 1))
    assert tracker.end() == [] and launched == [0, 1, 2]


@pytest.mark.parametrize("name", ["one", "other"])
def test_what_overflowed_in_one_bucket_is_not_thrown_away(name):
    model = EitherWay()
    getattr(model, name).weight.register_hook(lambda gradient: gradient * torch.inf)
    engine = after_a_pass(model)
    for parameter in model.parameters():
        parameter.grad = None
    assert not engine.backward.is_thrown_away(None)
    engine.close()


class FirstAlone(torch.autograd.Function):
    """A function of a script's own, which has no gradient for its second argument."""

    @staticmethod
    def forward(ctx, first, second):
        return first.sum() + second.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(2, 2), None


def test_what_a_function_gives_no_gradient_has_one_of_zeros():
    """torch calls the hooks after accumulation all the same, with nothing accumulated."""
    model = EitherWay()
    engine = engine_of(model, AllReduce())
    for _ in range(2):
        FirstAlone.apply(model.one.weight, model.other.weight).backward()
    assert model.one.weight.grad.equal(torch.full((2, 2), 2.0))
    assert model.other.weight.grad.equal(torch.zeros(2, 2))
    engine.close()


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight.sum()

    @staticmethod
    def backward(ctx, gradient):
        return None


@pytest.mark.parametrize("algorithm", [AllReduce(), TopK(ratio=0.5)])
def test_workers_meet_in_a_pass_that_gives_nothing(algorithm):
    """Others may have gradients in theirs."""
    model = EitherWay()
    engine = engine_of(model, algorithm)
    Nothing.apply(model.one.weight).backward()
    assert [p.grad.tolist() for p in model.parameters()] == [[[0, 0], [0, 0]]] * 2
    with engine.no_sync():
        Nothing.apply(model.one.weight).backward()
    engine.close()


def test_stacked_workers_add_up_what_passes_give_them():
    """Their rows of a bucket lie apart."""
    model = StackedModel(EitherWay(), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(2))
    x = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]]])
    model(x).sum().backward()
    once = [parameter.grad.clone() for parameter in model.parameters()]
    assert all(gradient.any() for gradient in once)
    model(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient)
    engine.close()


def test_what_nobody_used_has_no_gradient_where_nothing_waits_to_be_sent():
    model = EitherWay()
    engine = engine_of(model, TopK(ratio=0.5), find_unused_parameters=True)
    model.one(torch.ones(1, 2)).sum().backward()
    assert model.one.weight.grad.any() and model.other.weight.grad is None
    engine.close()


def test_a_layer_lives_on_in_another_model_and_keeps_a_scripts_hooks():
    layer, heard = nn.Linear(2, 2, bias=False), []
    layer.weight.register_post_accumulate_grad_hook(heard.append)
    engine = engine_of(nn.Sequential(layer))
    del engine
    gc.collect()
    model = nn.Sequential(layer)
    engine = engine_of(model)
    model(torch.ones(1, 2)).sum().backward()
    engine.context.optimizer.step()
    assert heard == [layer.weight]
    engine.close()
