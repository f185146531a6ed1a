"""Scripts that throw gradients away, load weights, look on or go on after an error: right, or
refused by one sentence.
"""

import copy
import gc
import io
import threading
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import (
    SGP,
    AllReduce,
    ChocoSGD,
    CommunicationError,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    TopK,
)
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import Ring
from bagua_algos.compressors import QSGD, SignScale
from bagua_algos.engine.consensus import averaged
from bagua_algos.outer_optimizer import Nesterov
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.test_engine import ONE_BYTE, Recording, engine_of, layers

WITH_FEEDBACK = [
    TopK(ratio=0.1),
    PowerSGD(rank=1),
    CompressedAllReduce(compressor=SignScale(), error_feedback=True),
]
WITH_MOMENTUM = TopK(ratio=0.1, momentum=0.9)
WITH_PICTURE = [
    LocalSGD(interval=2, outer=Nesterov()),
    LowPrecisionDecentralized(),
    ChocoSGD(),
    SGP(overlap=True),
]


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3)).square().sum()


def name_of(algorithm: object) -> str:
    return type(algorithm).__name__


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_thrown_away_are_refused_where_what_is_unsent_stays(algorithm, set_to_none):
    model = layers(3, 4, 5)
    _, optimizer = engine_of(model, algorithm)
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    with pytest.raises(ValueError, match=r"^the gradients of the last backward pass were thrown"):
        loss_of(model).backward()


@pytest.mark.parametrize("algorithm", [*WITH_FEEDBACK, AllReduce(), Decentralized()], ids=name_of)
@pytest.mark.parametrize("sizes", [(3, 4, 5), (3, 1)])
def test_gradients_that_accumulate_are_taken(algorithm, sizes):
    model = layers(*sizes)
    _, optimizer = engine_of(model, algorithm)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        first = [p.grad.clone() for p in model.parameters()]
        loss_of(model).backward()
        both = [p.grad.clone() for p in model.parameters()]
        if type(algorithm) in (AllReduce, Decentralized):
            assert all(map(torch.equal, both, [2 * gradient for gradient in first]))
        else:
            assert not all(map(torch.equal, both, first))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        for p, own, gradient in zip(model.parameters(), before, both, strict=True):
            torch.testing.assert_close(p, own - 0.1 * gradient)


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
@pytest.mark.parametrize("bucket_bytes", [ONE_BYTE, 1 << 20])
def test_gradients_that_are_zero_accumulate_too(algorithm, bucket_bytes):
    """A last layer of zeros leaves the others without a gradient in the first step."""
    model = layers(3, 4, 5)
    _, optimizer = engine_of(model, algorithm, bucket_bytes=bucket_bytes)
    with torch.no_grad():
        model[1].weight.zero_()
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert model[1].weight.any()


@pytest.mark.parametrize("algorithm", [*WITH_FEEDBACK, WITH_MOMENTUM], ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_overflowed_may_be_thrown_away(algorithm, set_to_none):
    model, plain = layers(3, 4, 5), layers(3, 4, 5)
    pairs = [(m, engine_of(m, algorithm)[1]) for m in (model, plain)]
    (torch.inf * loss_of(model)).backward()
    for m, optimizer in pairs:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(m).backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in m.parameters())


@pytest.mark.parametrize("algorithm", [*WITH_FEEDBACK, WITH_MOMENTUM], ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("has_closure", [True, False])
def test_two_optimizers_may_step_in_turn(algorithm, set_to_none, has_closure):
    model, plain = layers(3, 4, 5), layers(3, 4, 5)
    pairs = [(m, engine_of(m, algorithm)[1]) for m in (model, plain)]
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        for m, optimizer in pairs:

            def closure(m=m):
                m.zero_grad(set_to_none=set_to_none)
                loss_of(m).backward()

            own = other if m is model and step % 2 == 0 else optimizer
            own.step(closure) if has_closure else (closure(), own.step())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_an_optimizer_of_one_layer_leaves_may_accumulate_and_not_go(algorithm, set_to_none):
    model = layers(3, 4, 5)
    _, optimizer = engine_of(model, algorithm)
    head = torch.optim.SGD(model[1].parameters(), lr=0.1)
    for _ in range(2):
        loss_of(model).backward()
        head.step()
        head.zero_grad(set_to_none=set_to_none)
        loss_of(model).backward()
        optimizer.step()
        model.zero_grad(set_to_none=set_to_none)
    loss_of(model).backward()
    head.step()
    model.zero_grad(set_to_none=set_to_none)
    with pytest.raises(
        ValueError, match=r"thrown away .* the zero_grad\(\) of that optimizer alone"
    ):
        loss_of(model).backward()


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
def test_the_one_weight_that_another_optimizer_leaves_may_accumulate(algorithm):
    """It has the first gradient of the next pass, too; the others are zeros by then."""
    model = layers(3, 4, 5)
    _, optimizer = engine_of(model, algorithm)
    first, _ = model.parameters()
    other = torch.optim.SGD([first], lr=0.1)
    for _ in range(2):
        loss_of(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        other.step()
        other.zero_grad(set_to_none=False)
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_momentum_takes_no_gradients_of_another_optimizer_that_stay():
    model = layers(3, 4, 5)
    engine_of(model, WITH_MOMENTUM)
    loss_of(model).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(ValueError, match=r"^TopK takes every backward pass for a step: let"):
        loss_of(model).backward()


@pytest.mark.parametrize("algorithm", WITH_FEEDBACK, ids=name_of)
def test_gradients_within_no_sync_may_be_thrown_away(algorithm):
    model, plain = layers(3, 4, 5), layers(3, 4, 5)
    engine, optimizer = engine_of(model, algorithm)
    _, expected = engine_of(plain, algorithm)
    for step in range(3):
        if step:
            with engine.no_sync():
                (1e3 * loss_of(model)).backward()
        for m, o in ((model, optimizer), (plain, expected)):
            o.zero_grad()
            loss_of(m).backward()
            o.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_momentum_of_what_is_unsent_takes_one_backward_pass_a_step():
    model = layers(3, 4)
    _, optimizer = engine_of(model, TopK(momentum=0.9))
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"^TopK takes every backward pass for a step: let"):
        loss_of(model).backward()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_every_backward_pass_of_a_step_draws_anew():
    model = layers(3, 40)
    seen = []

    class Watching(QSGD):
        def compress(self, x, draw=None):
            seen.append(draw)
            return super().compress(x, draw)

    engine, optimizer = engine_of(model, CompressedAllReduce(compressor=Watching(bits=2)))
    for _ in range(2):
        for number in range(3):
            with engine.no_sync() if number else nullcontext():
                loss_of(model).backward()
            loss_of(model).backward()
        optimizer.step()
    assert len(set(seen)) == len(seen)
    assert {(draw.step, draw.stage) for draw in seen} >= {(0, 0), (0, 2), (0, 4), (1, 0)}


@pytest.mark.parametrize("algorithm", WITH_PICTURE, ids=name_of)
@pytest.mark.parametrize("part", ["model", "layer"])
def test_loaded_weights_are_refused_where_the_algorithm_keeps_a_picture(algorithm, part):
    model = layers(3, 4, 5)
    _, optimizer = engine_of(model, algorithm)
    loss_of(model).backward()
    optimizer.step()
    loaded = model if part == "model" else model[1]
    loaded.load_state_dict({name: x + 1 for name, x in loaded.state_dict().items()})
    optimizer.zero_grad()
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"^weights were loaded .* bagua_algos.load_state_dict"):
        optimizer.step()


@pytest.mark.parametrize("algorithm", WITH_PICTURE, ids=name_of)
def test_other_weights_may_be_loaded_for_a_while(algorithm):
    """To evaluate others, such as a moving average."""
    model, plain = layers(3, 4, 5), layers(3, 4, 5)
    pairs = [(m, engine_of(m, algorithm)[1]) for m in (model, plain)]
    for _ in range(3):
        for m, optimizer in pairs:
            optimizer.zero_grad()
            loss_of(m).backward()
            optimizer.step()
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict({name: 0 * x for name, x in own.items()})
        model.load_state_dict(own)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("algorithm", WITH_PICTURE, ids=name_of)
def test_a_checkpoint_is_taken_up(algorithm):
    first = layers(3, 4, 5)
    engine, optimizer = engine_of(first, algorithm)
    loss_of(first).backward()
    optimizer.step()
    engine.pause()
    second = layers(3, 4, 5)
    other, other_optimizer = engine_of(second, algorithm)
    second.load_state_dict(first.state_dict())
    other.load_state_dict(engine.state_dict())
    for m, o in ((first, optimizer), (second, other_optimizer)):
        o.zero_grad()
        loss_of(m).backward()
        o.step()
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_loaded_within_the_consensus_go_with_it():
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, ChocoSGD())
    loss_of(model).backward()
    optimizer.step()
    engine.pause()
    before = [p.detach().clone() for p in model.parameters()]
    with engine.consensus():
        model.load_state_dict({name: 0 * x for name, x in model.state_dict().items()})
    assert all(map(torch.equal, model.parameters(), before))
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def test_weights_may_be_loaded_before_workers_part():
    model = layers(3, 4)
    _, optimizer = engine_of(model, LocalSGD(start_step=2, outer=Nesterov()))

    def load_and_step() -> None:
        model.load_state_dict({name: x + 1 for name, x in model.state_dict().items()})
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    load_and_step()
    load_and_step()
    with pytest.raises(ValueError, match="weights were loaded"):
        load_and_step()


def test_a_part_that_lives_longer_keeps_no_engine():
    model = layers(3, 4, 5)
    engine = weakref.ref(engine_of(model, ChocoSGD())[0])
    part = model[0]
    del model
    gc.collect()
    assert engine() is None
    part.load_state_dict(part.state_dict())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_part_is_no_obstacle():
    model = layers(3, 4)
    model.append(torch.jit.script(nn.Tanh()))
    _, optimizer = engine_of(model, ChocoSGD())
    loss_of(model).backward()
    optimizer.step()


def test_weights_may_change_after_a_forward_pass_where_nothing_travels():
    model, weight, engine = stacked(Decentralized(interval=2))
    x = torch.zeros(4, 2, 3)
    model(x).sum().backward()
    engine.context.optimizer.step()
    model(x)
    with torch.no_grad():
        weight.add_(1)
    kept = weight.detach().clone()
    model(x).sum().backward()
    assert torch.equal(weight, kept)


def test_copies_and_files_have_no_hook_of_loading():
    model = layers(3, 4, 5)
    engine_of(model, ChocoSGD())
    alike = copy.deepcopy(model)
    assert not any(module._load_state_dict_pre_hooks for module in alike.modules())
    file = io.BytesIO()
    torch.save(model, file)
    assert b"bagua_algos" not in file.getvalue()


def stacked(algorithm, num_workers=4):
    """Workers whose weights differ."""
    model = StackedModel(nn.Linear(3, 2, bias=False), num_workers)
    (weight,) = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, _ = engine_of(model, algorithm, num_workers), optimizer
    engine = engine[0]
    with torch.no_grad():
        weight.copy_(torch.arange(num_workers).reshape(-1, 1, 1).expand_as(weight))
    return model, weight, engine


@pytest.mark.parametrize("within", [nullcontext, lambda engine: engine.consensus()])
def test_a_forward_pass_of_the_consensus_begins_no_step(within):
    model, weight, engine = stacked(Decentralized(topology=Ring()))
    x = torch.zeros(4, 2, 3)
    with engine.consensus():
        with within(engine):
            pass
        model(x)  # in training mode
    model(x).sum().backward()
    assert weight[:, 0, 0].tolist() == pytest.approx([4 / 3, 1.0, 2.0, 5 / 3])  # not all 1.5


def test_weights_loaded_after_a_forward_pass_of_training_are_not_lost_without_a_word():
    model, _, _ = stacked(Decentralized())
    x = torch.zeros(4, 2, 3)
    model(x)
    model.load_state_dict({name: w + 7 for name, w in model.state_dict().items()})
    with pytest.raises(ValueError, match=r"was changed after a forward pass in training mode"):
        model(x).sum().backward()


class Projecting(nn.Module):
    """Keeps its weight within bounds, in every forward pass."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x):
        with torch.no_grad():
            self.scale.clamp_(0, 1)
        return self.scale * x


def projecting(*, has_embedding: bool) -> nn.Module:
    torch.manual_seed(0)
    last = nn.Linear(3, 3) if has_embedding else Projecting()
    return nn.Sequential(nn.Embedding(5, 3, max_norm=1.0 if has_embedding else None), last)


PROJECTED = torch.tensor([[0, 1], [1, 4]])


@pytest.mark.parametrize(("has_embedding", "name"), [(True, "0.weight"), (False, "1.scale")])
def test_a_change_by_the_models_own_forward_pass_is_not_lost_without_a_word(has_embedding, name):
    model = projecting(has_embedding=has_embedding)
    engine_of(model, Decentralized())
    with pytest.raises(ValueError, match=rf"^'{name}' .* the model's own forward .* take SGP"):
        model(PROJECTED).sum().backward()


@pytest.mark.parametrize("has_embedding", [True, False])
def test_sgp_keeps_a_change_by_the_models_own_forward_pass(has_embedding):
    model, plain = (projecting(has_embedding=has_embedding) for _ in range(2))
    optimizers = (engine_of(model, SGP(overlap=True))[1], engine_of(plain, AllReduce())[1])
    for _ in range(5):
        for m, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            m(PROJECTED).square().sum().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_weights_changed_between_two_forward_passes_are_not_lost_without_a_word():
    model = layers(3, 4)
    engine_of(model, Decentralized())
    loss_of(model)
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(ValueError, match=r"was changed after a forward pass in training mode"):
        loss_of(model).backward()


def test_weights_loaded_after_a_forward_pass_without_gradients_stay():
    model, weight, _ = stacked(Decentralized())
    x = torch.zeros(4, 2, 3)
    with torch.no_grad():
        model(x)
    model.load_state_dict({name: 0 * w + 7 for name, w in model.state_dict().items()})
    model(x).sum().backward()
    assert weight.flatten().tolist() == pytest.approx([7.0] * 24)


def test_an_empty_backward_does_not_go_on_with_one_that_broke_off():
    model, algorithm = layers(3, 4, 5), Recording()
    engine, _ = engine_of(model, algorithm, bucket_bytes=ONE_BYTE)
    hook = model[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model).backward()
    hook.remove()
    with pytest.raises(ValueError, match="the last backward pass was broken off by an error"):
        engine.empty_backward()
    assert algorithm.moments.count("bucket 0") <= 1


def test_what_waits_unsent_is_used_also_where_nobody_used_the_layer():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = engine_of(model, TopK(ratio=0.5), find_unused_parameters=True)[0]
    optimizer = engine.context.optimizer
    given = torch.zeros(2)
    for a, b in ((1.0, 2.0), (None, 0.5), (None, 0.5)):
        optimizer.zero_grad()
        loss = b * model.b.sum() + (0 if a is None else a * model.a.sum())
        given += torch.tensor([a or 0.0, b])
        loss.backward()
        optimizer.step()
    unsent = torch.cat([memory.unsent.flatten() for memory in engine.context.state])
    applied = -10 * torch.stack([model.b.detach(), model.a.detach()]).flatten()  # by lr 0.1
    torch.testing.assert_close(applied + unsent, given.flip(0))


def test_nothing_goes_on_after_a_wait_that_was_given_up():
    release = threading.Event()

    class Silent(AllReduce):
        def on_bucket_ready(self, context, bucket):
            release.wait(20)

    model = layers(3, 4)
    engine_of(model, Silent(), timeout_s=0.2)
    with pytest.raises(CommunicationError, match=r"has not finished within 0\.2 s"):
        loss_of(model).backward()
    release.set()
    with pytest.raises(CommunicationError, match=r"not tried after: bucket 0 of Silent has not"):
        loss_of(model).backward()


def test_a_consensus_that_fails_gives_the_weights_back():
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, LocalSGD(), bucket_bytes=ONE_BYTE)
    before = [bucket.weights.clone() for bucket in engine.context.buckets]

    class Failing(StackedCommunicator):
        def all_reduce_mean_(self, x):
            x.zero_()
            if x.shape == before[1].shape:
                raise CommunicationError("worker 1 is gone")

    within = averaged(engine.context.buckets, Failing(1), lambda _, job: job(), lambda: None)
    with pytest.raises(CommunicationError, match="worker 1 is gone"), within:
        pass
    for bucket, weights in zip(engine.context.buckets, before, strict=True):
        assert torch.equal(bucket.weights, weights)


def test_a_model_that_was_trained_beside_a_distributed_one_goes():
    model = layers(3, 4)
    engine_of(model, AllReduce())
    other = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    weight = weakref.ref(other.weight)
    del other, optimizer
    gc.collect()
    assert weight() is None
    assert not bagua_algos.is_distributed(model)
