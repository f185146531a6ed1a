"""What the algorithm sees of weights that a script has put elsewhere, and how buckets are cut."""

from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from bagua_algos import Algorithm, AllReduce, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.test_engine import engine_of, layers


@dataclass(frozen=True, kw_only=True)
class Looking(Algorithm):
    """Keeps the first weight that it finds in the bucket at each moment."""

    seen: dict[str, float] = field(default_factory=dict)

    def _look(self, moment, context):
        self.seen[moment] = context.buckets[0].weights.flatten()[0].item()

    def on_forward(self, context):
        self._look("forward", context)

    def on_backward_end(self, context):
        self._look("backward", context)

    def on_step_begin(self, context):
        self._look("step begin", context)

    def on_step_end(self, context):
        self._look("step end", context)

    def on_pause(self, context):
        self._look("pause", context)


def move(model, value):
    """As a script may do, with `model.weight.data = ...`: the bucket does not see it."""
    model[0].weight.data = torch.full_like(model[0].weight, value)


def in_bucket(model, engine):
    """Whether the parameter is a view of its bucket."""
    places = [
        view.data_ptr()
        for bucket in engine.context.buckets
        for p, view in zip(bucket.parameters, bucket.views(bucket.weights), strict=True)
        if p is model[0].weight
    ]
    return places == [model[0].weight.data_ptr()]


def test_moved_weights_are_back_in_their_bucket_at_every_moment():
    model, algorithm = layers(3, 4), Looking()
    engine, optimizer = engine_of(model, algorithm)
    move(model, 1.0)
    outputs = model(torch.ones(2, 3))
    engine.dispatcher.wait_exposed()
    assert algorithm.seen["forward"] == 1.0
    move(model, 2.0)
    outputs.sum().backward()
    assert algorithm.seen["backward"] == 2.0
    move(model, 3.0)
    optimizer.step()
    assert algorithm.seen["step begin"] == 3.0
    assert algorithm.seen["step end"] == pytest.approx(3.0 - 0.1 * 2)
    move(model, 4.0)
    engine.pause()
    assert algorithm.seen["pause"] == 4.0 and in_bucket(model, engine)
    move(model, 5.0)
    engine.stand_still()
    assert in_bucket(model, engine) and model[0].weight.eq(5).all()
    engine.close()


def through_another_type(model):
    model.double()
    model.float()


def one_by_one(model):
    for parameter in model.parameters():
        parameter.data = parameter.data + 1


@pytest.mark.parametrize("leave", [nn.Module.double, through_another_type, one_by_one])
@pytest.mark.parametrize("fails", [False, True])
def test_weights_that_leave_within_the_consensus_are_the_workers_own_after_it(leave, fails):
    model = StackedModel(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, LocalSGD(interval=9), StackedCommunicator(3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.arange(3.0).view(3, *[1] * (parameter.dim() - 1)))
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(KeyError) if fails else nullcontext(), engine.consensus() as spread:
        assert spread > 0.1
        leave(model.module)
        if fails:
            raise KeyError
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, own[name]), name
    assert in_bucket(model.module, engine)
    engine.pause()
    engine.close()


def test_a_weight_of_another_size_after_the_consensus_is_refused():
    model = layers(3, 4)
    engine, _ = engine_of(model, LocalSGD())
    with (
        pytest.raises(ValueError, match=r"'0.weight' .* has the shape \(2,\) now"),
        engine.consensus(),
    ):
        model[0].weight.data = torch.zeros(2)
    engine.close()


def test_weights_that_are_taken_back_in_inference_mode_train_on():
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, AllReduce())
    model[1].weight.data = torch.full((5, 4), 2.0)
    with torch.inference_mode():
        engine.pause()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not model[1].weight.is_inference()
    engine.close()


@pytest.mark.parametrize("comes_first", [False, True])
def test_weights_that_are_moved_within_a_step_are_taken_back_after_it(comes_first):
    """By a hook of the script's on its optimizer, which comes after the engine's."""
    model, algorithm = layers(3, 4), Looking()
    optimizer, hooks = torch.optim.SGD(model.parameters(), lr=0.1), []

    def add_hook():
        hooks.append(optimizer.register_step_post_hook(lambda *_: move(model, 7.0)))

    if comes_first:
        add_hook()
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))
    if not comes_first:
        add_hook()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert algorithm.seen["step end"] != 7.0
    hooks[0].remove()
    engine.pause()
    assert algorithm.seen["pause"] == 7.0 and in_bucket(model, engine)
    engine.close()


def test_moved_weights_are_laid_out_anew_with_the_others():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, AllReduce())
    move(model, 6.0)
    first, second = model.parameters()
    engine.relayout([(first,), (second,)])
    assert model[0].weight.eq(6).all() and in_bucket(model, engine)
    assert [bucket.parameters for bucket in engine.context.buckets] == [(first,), (second,)]
    engine.close()


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_weights_that_were_swapped_are_taken_back_as_they_are(bucket_bytes):
    """Each lies where the other belongs, in one bucket or in two."""
    model = layers(3, 3, 3)
    engine, _ = engine_of(model, AllReduce(), bucket_bytes=bucket_bytes)
    one, other = model.parameters()
    values = [other.detach().clone(), one.detach().clone()]
    one.data, other.data = other.data, one.data
    engine.pause()
    assert torch.equal(one, values[0]) and torch.equal(other, values[1])
    assert in_bucket(model, engine)
    engine.close()


def lay_out_anew(engine):
    engine.relayout([bucket.parameters for bucket in engine.context.buckets])


@pytest.mark.parametrize("act", [Engine.pause, lay_out_anew])
def test_weights_that_were_tied_or_shared_after_the_start_are_refused(act):
    model = layers(3, 3, 3)
    model.register_buffer("average", torch.zeros(3, 3))
    engine, _ = engine_of(model, AllReduce())
    own = model[1].weight.data
    for memory in (model[0].weight.data, model.average):
        model[1].weight.data = memory
        with pytest.raises(ValueError, match=r"'1.weight' .* given the memory of another param"):
            act(engine)
    model[1].weight.data = own.clone().share_memory_()
    with pytest.raises(ValueError, match=r"'1.weight' .* memory that other processes share after"):
        act(engine)
    model[1].weight.data = own
    act(engine)
    engine.close()


def test_weights_whose_old_memory_a_script_keeps_are_refused_before_anything_is_overwritten():
    """Without clone(), as `backup[name] = p.data; p.data = shadow[name]` does."""
    model = layers(3, 3, 3)
    engine, _ = engine_of(model, AllReduce())
    one, other = model.parameters()
    values = one.detach().clone(), other.detach().clone()
    kept = "'0.weight' .* other memory while its old one, which lies in a bucket, is kept"
    old, one.data = one.data, one.data * 2
    with pytest.raises(ValueError, match=kept):
        engine.pause()
    with pytest.raises(ValueError, match=kept):
        model(torch.ones(2, 3))
    one.data = old
    model(torch.ones(2, 3)).sum().backward()
    average = nn.Parameter(torch.ones(3, 3))
    one.data, average.data = average.data, one.data
    with pytest.raises(ValueError, match=kept):
        engine.pause()
    one.data, average.data = average.data, one.data
    engine.pause()
    assert torch.equal(one, values[0]) and torch.equal(other, values[1])
    assert average.eq(1).all() and in_bucket(model, engine)
    del old
    one.data = one.data * 2
    engine.pause()
    assert torch.equal(one, 2 * values[0]) and in_bucket(model, engine)
    engine.close()


def test_a_graph_that_still_needs_the_old_weights_is_no_longer_wrong():
    model = layers(3, 3, 3)
    engine, _ = engine_of(model, AllReduce())
    loss = model(torch.ones(2, 3)).sum()
    model[1].weight.data = torch.full((3, 3), 2.0)
    with pytest.raises(ValueError, match=r"'1.weight' .* is kept"):
        model(torch.ones(2, 3))
    del loss
    model(torch.ones(2, 3))
    assert model[1].weight.eq(2).all()
    engine.close()


@pytest.mark.parametrize(("num_first", "num_buckets"), [(1 << 20, 2), ((1 << 20) - 1, 1)])
def test_a_bucket_is_closed_once_it_holds_four_mebibytes(num_first, num_buckets):
    """The last parameter comes first."""
    model = nn.ParameterList([torch.zeros(3), torch.zeros(num_first)])
    engine, _ = engine_of(model, AllReduce())
    assert len(engine.context.buckets) == num_buckets
    engine.close()
