"""What a script does to a model and its optimizer after `distribute`: taken, or refused by name."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from bagua_algos import AllReduce, Decentralized, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script.changes import check_is_not_wrapped
from tests.bagua_algos.engine.test_engine import engine_of, layers
from tests.bagua_algos.engine.test_moved_weights import in_bucket
from tests.bagua_algos.engine.test_observers import Observer


def sgd(*parameters: nn.Parameter) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize("algorithm", [LocalSGD(), Decentralized()])
def test_another_optimizer_may_not_change_weights_that_an_algorithm_acts_on(algorithm):
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, algorithm)
    other = sgd(nn.Parameter(torch.zeros(1)))
    backward(model)
    other.step()
    other.add_param_group({"params": [model[1].weight]})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'1.weight' .* another optimizer is about to change"):
            other.step()
    model[1].requires_grad_(False)
    other.step()
    model[1].requires_grad_(True)
    engine.close()
    sgd(*model.parameters()).step()


def test_another_optimizer_may_use_what_is_averaged_and_nothing_else_of_the_model():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, AllReduce())
    model.append(nn.Linear(5, 5))
    backward(model)
    before = model[1].weight.detach().clone()
    sgd(model[1].weight).step()
    assert not torch.equal(model[1].weight, before)
    with pytest.raises(ValueError, match=r"'2.bias' .* another optimizer is about to change"):
        sgd(model[2].bias).step()
    engine.close()


def test_the_model_is_searched_for_another_optimizers_parameters_once():
    """It may step often, and have few of them beside a large model."""

    class Watched(nn.Sequential):
        num_searches = 0

        def named_parameters(self, *args, **kwargs):
            self.num_searches += 1
            return super().named_parameters(*args, **kwargs)

    model, beside = Watched(*layers(3, 4)), nn.Parameter(torch.ones(1))
    engine, _ = engine_of(model, LocalSGD())
    other = sgd(beside)
    beside.grad = torch.ones(1)
    found = []
    for _ in range(3):
        before = model.num_searches
        other.step()
        found.append(model.num_searches - before)
    assert found == [1, 0, 0]
    engine.close()


def test_of_two_models_each_has_an_optimizer_of_its_own():
    pairs = [(model := layers(3, 4), *engine_of(model, LocalSGD())) for _ in range(2)]
    for model, _, optimizer in pairs:
        backward(model)
        optimizer.step()
    with pytest.raises(ValueError, match=r"another optimizer is about to change"):
        sgd(*pairs[0][0].parameters()).step()
    for _, engine, _ in pairs:
        engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD()])
def test_an_optimizer_that_steps_within_backward_is_refused_unless_it_is_of_something_else(
    algorithm,
):
    model, beside = layers(3, 4), nn.Parameter(torch.zeros(1))
    engine, optimizer = engine_of(model, algorithm)
    (weight,) = model.parameters()
    hook = weight.register_hook(lambda gradient: sgd(beside).step())
    backward(model)
    hook.remove()
    optimizer.step()
    for own in (optimizer, sgd(weight)):
        hook = weight.register_hook(lambda gradient, own=own: own.step())
        with pytest.raises(ValueError, match=r"^an optimizer steps '0.weight' .* during backward"):
            backward(model)
        hook.remove()
    engine.close()


def test_a_weight_that_is_changed_during_backward_is_refused():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, AllReduce())

    def change(gradient: torch.Tensor) -> None:
        with torch.no_grad():
            model[1].weight.add_(1)

    model[0].weight.register_hook(change)
    with pytest.raises(ValueError, match=r"^'1.weight' of shape \(5, 4\) was changed during backw"):
        backward(model)
    engine.close()


def test_parameters_that_come_to_the_optimizer_are_those_in_buckets():
    model = layers(3, 4, 5)
    engine, own = engine_of(model, AllReduce())
    model.append(nn.Linear(5, 5))
    model[2].weight.requires_grad_(False)
    own.add_param_group({"params": [model[2].weight], "lr": 0.1})  # frozen: nothing trains it
    backward(model)
    own.step()
    own.add_param_group({"params": [model[2].bias], "lr": 0.1})
    with pytest.raises(ValueError, match=r"^'2.bias' of shape \(5,\) was added to the optimizer"):
        own.step()
    engine.close()


def test_a_group_that_came_later_may_go_no_more_than_others():
    """Its parameters were in buckets before: another optimizer might have trained them."""
    model = layers(3, 4, 5)
    optimizer = sgd(model[0].weight)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    optimizer.add_param_group({"params": [model[1].weight], "lr": 0.1})
    backward(model)
    optimizer.step()
    optimizer.param_groups.pop()
    backward(model)
    with pytest.raises(ValueError, match=r"^the optimizer's parameters were replaced or put into"):
        optimizer.step()
    engine.close()


@pytest.mark.parametrize(
    "change", [lambda own: own.reverse(), lambda own: own.pop(), lambda own: own.append(own.pop(0))]
)
def test_an_optimizer_that_has_lost_parameters_or_their_order_is_refused(change):
    model = layers(3, 4, 5, 6)
    engine, optimizer = engine_of(model, AllReduce())
    backward(model)
    optimizer.step()
    change(optimizer.param_groups[0]["params"])
    backward(model)
    with pytest.raises(ValueError, match=r"^the optimizer's parameters were replaced or put into"):
        optimizer.step()
    engine.close()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("which", [slice(None), slice(1), slice(1, None)])
def test_parameters_that_were_replaced_are_refused(which, set_to_none):
    """All of them, so that no backward pass is the engine's, or one of two. Their last gradients
    may be there still.
    """
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, AllReduce())
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    model[which].load_state_dict(layers(3, 4, 5)[which].state_dict(), assign=True)
    with pytest.raises(ValueError, match=r"was replaced after the model was distributed"):
        backward(model)
        optimizer.step()
    engine.close()


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        (torch.zeros(4, 3, dtype=torch.float64), "is float64 on cpu now and was float32 on cpu"),
        (torch.zeros(5, 3), r"has the shape \(5, 3\) now, another than when the model was"),
    ],
)
def test_weights_of_another_kind_are_refused(memory, sentence):
    model = layers(3, 4)
    engine, _ = engine_of(model, AllReduce())
    own = model[0].weight.data
    model[0].weight.data = memory
    with pytest.raises(ValueError, match=f"^'0.weight' .*{sentence}"):
        engine.pause()
    model[0].weight.data = own
    engine.pause()
    engine.close()


def test_a_memory_format_of_later_is_warned_of_and_not_kept():
    model = nn.Sequential(nn.Conv2d(2, 3, 3))
    engine, _ = engine_of(model, AllReduce())
    strides, values = model[0].weight.stride(), model[0].weight.detach().clone()
    model.to(memory_format=torch.channels_last)
    with pytest.warns(UserWarning, match="weights of a distributed model keep their"):
        engine.pause()
    assert model[0].weight.stride() == strides and torch.equal(model[0].weight, values)
    with warnings.catch_warnings(action="error"):
        model[0].weight.data = model[0].weight.data + 1
        engine.pause()
    engine.close()


def test_what_one_worker_throws_away_is_warned_of_once():
    model = layers(3, 4)
    engine, _ = engine_of(model, AllReduce())
    with pytest.warns(UserWarning, match=r"^the gradients of the last backward pass were thrown"):
        engine._changes.warn_of_thrown_away()
    with warnings.catch_warnings(action="error"):
        engine._changes.warn_of_thrown_away()
    engine.close()


class FullyShardedDataParallel(nn.Module):
    """By its name: torch's own needs a GPU."""


def test_a_wrapper_that_averages_is_refused_in_any_part():
    check_is_not_wrapped(layers(3, 4))
    with pytest.raises(ValueError, match="model is wrapped in FullyShardedDataParallel, which"):
        check_is_not_wrapped(nn.Sequential(nn.Tanh(), FullyShardedDataParallel()))


def test_a_change_by_a_forward_is_told_from_one_after_it():
    """An algorithm replaces weights by an average that began to travel when forward began."""

    class Changing(nn.Linear):
        within = False

        def forward(self, x):
            if self.within:
                with torch.no_grad():
                    self.weight.add_(1)
            return super().forward(x)

    for within, sentence in ((True, "by the model's own forward"), (False, "after a forward pass")):
        model = nn.Sequential(Changing(3, 4))
        engine, optimizer = engine_of(model, Decentralized())
        backward(model)
        optimizer.step()
        model[0].within = within
        loss = model(torch.ones(2, 3)).sum()
        if not within:
            with torch.no_grad():
                model[0].weight.add_(1)
        with pytest.raises(ValueError, match=f"was changed {sentence}"):
            loss.backward()
        engine.close()


def test_gradients_may_change_between_an_average_and_the_step():
    """Weights may be looked at, and so may the consensus."""
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, Decentralized())
    for _ in range(2):
        backward(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.parameters_to_vector(model.parameters())
        with engine.consensus():
            model(torch.ones(2, 3))
        model[0].weight.grad = model[0].weight.grad.clone()
        optimizer.step()
    engine.close()


@pytest.mark.parametrize("is_changed", [True, False])
def test_what_a_step_without_a_backward_pass_has_changed_is_not_lost_without_a_word(is_changed):
    """Momentum goes on, though the average that is to replace the weights travels already."""
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = Engine(model, optimizer, Decentralized(), StackedCommunicator(1))
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=not is_changed)
    model(torch.ones(2, 3))
    optimizer.step()
    with pytest.raises(ValueError, match="was changed after") if is_changed else nullcontext():
        backward(model)
    engine.close()


def test_a_state_that_is_loaded_ends_a_step_that_has_begun():
    """A script goes back to its checkpoint where a loss is not finite."""
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = Engine(model, optimizer, Decentralized(), StackedCommunicator(1))
    backward(model)
    optimizer.step()
    weights, state = copy.deepcopy(model.state_dict()), engine.state_dict()
    model(torch.ones(2, 3))  # whose loss is thrown away
    model.load_state_dict(weights)
    engine.load_state_dict(state)
    backward(model)
    optimizer.step()
    engine.close()


def test_an_observers_forward_may_be_one_at_which_no_average_begins():
    observer, model = Observer(), layers(3, 4)
    engine, _ = engine_of(model, AllReduce(), step_observer=observer)
    observer.heard.clear()
    for _ in range(2):
        model(torch.ones(2, 3))
    assert observer.heard == ["on_forward", "on_forward_end"] * 2
    engine.close()


def test_weights_that_were_laid_out_anew_are_at_home():
    """They are not moved once more: whoever has them keeps them."""
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, AllReduce())
    engine.relayout([(p,) for p in model.parameters()])
    storages = [StorageWeakRef(p.untyped_storage()) for p in model.parameters()]
    engine.pause()
    assert not any(storage.expired() for storage in storages)
    engine.close()


def test_weights_that_leave_after_that_come_home_to_their_new_buckets():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, AllReduce())
    engine.relayout([(p,) for p in model.parameters()])
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    expected = [p.detach().clone() for p in model.parameters()]
    engine.pause()
    assert all(map(torch.equal, model.parameters(), expected))
    assert in_bucket(model, engine)
    engine.close()


def test_a_weight_is_held_as_long_as_a_script_has_a_tensor_in_its_memory():
    model = nn.Sequential(nn.LSTM(3, 4, num_layers=2), *layers(4, 5))
    engine, optimizer = engine_of(model, AllReduce())
    other = nn.Parameter(torch.ones(5))
    for _ in range(2):
        loss = (nn.Sequential(*model[1:])(model[0](torch.ones(2, 1, 3))[0]) * other).sum()
        loss.backward()
        optimizer.step()
        assert engine.held_weight() is None
        optimizer.zero_grad()
    engine.relayout([(p,) for p in model.parameters()])
    assert engine.held_weight() is None
    for hold in (
        model.state_dict,
        lambda: model[1].weight.detach(),
        lambda: model[1].weight.data[0],
        lambda: model[1].weight.detach().numpy(),
        lambda: model[1](torch.ones(1, 4, requires_grad=True)),
    ):
        held = hold()
        assert engine.held_weight() is not None
        del held
        assert engine.held_weight() is None
    engine.close()


def test_a_place_that_is_kept_is_seen_also_where_weights_have_come_home_before():
    model = layers(3, 4)
    engine, _ = engine_of(model, AllReduce())
    (weight,) = model.parameters()
    for value in (1.0, 2.0):
        weight.data = torch.full_like(weight, value)
        engine.pause()
    old, weight.data = weight.data, weight.data + 1
    with pytest.raises(ValueError, match=r"'0.weight' .* its old one, which lies in a bucket, is"):
        engine.pause()
    assert old.eq(2).all()
    engine.close()
