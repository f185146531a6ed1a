"""When an engine's moments come, and on which gradients a step may be taken: in one process."""

import copy
import threading
import warnings
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import bagua_algos
from bagua_algos import SGP, Algorithm, AllReduce, ChocoSGD, Context, Decentralized, LocalSGD, TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.outer_optimizer import Nesterov
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.test_engine import Recording, engine_of, layers
from tests.bagua_algos.engine.test_script_order import stacked


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def give_own_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


PASS = ["bucket 0", "backward end"]
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def test_each_backward_pass_begins_the_step_anew():
    """The forward after a pass may be another micro-batch's, or the next step's: nobody knows."""
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    for step in range(2):
        for _ in range(3):
            backward(model)
        optimizer.step()
        assert algorithm.moments == [*["forward", *PASS] * 3, f"step {step} end"]
        algorithm.moments.clear()
    engine.close()


def test_a_forward_after_a_backward_pass_waits_for_its_first_gradient():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    backward(model)
    loss = model(torch.ones(2, 3)).sum()
    assert algorithm.moments == ["forward", *PASS]
    loss.backward()
    assert algorithm.moments == ["forward", *PASS] * 2
    optimizer.step()
    loss = model(torch.ones(2, 3)).sum()
    engine.dispatcher.wait_exposed()
    assert algorithm.moments[-2:] == ["step 0 end", "forward"]
    loss.backward()
    assert algorithm.moments[-3:] == ["forward", *PASS]
    engine.close()


def test_a_step_may_be_taken_twice_on_gradients_that_workers_have_averaged():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    before = model[0].weight.detach().clone()
    backward(model)
    for _ in range(3):
        optimizer.step()
    torch.testing.assert_close(model[0].weight, before - 3 * 0.1 * 2)
    engine.close()


@dataclass(frozen=True, kw_only=True)
class Doubling(AllReduce):
    """Changes the gradients once more when a step begins."""

    def on_step_begin(self, context: Context) -> None:
        for bucket in context.buckets:
            bucket.gradients.mul_(2)


@pytest.mark.parametrize(
    ("algorithm", "step"), [(AllReduce(), 0.2), (TopK(ratio=1.0), 0.2), (Doubling(), 0.4)]
)
@pytest.mark.parametrize("is_tried_again", [True, False])
def test_a_step_that_an_error_breaks_off_may_be_tried_again(algorithm, step, is_tried_again):
    model, is_broken = layers(3, 4), [True]
    engine, optimizer = engine_of(model, algorithm)

    def break_off(*_: object) -> None:
        if is_broken[0]:
            raise KeyError

    optimizer.register_step_pre_hook(break_off)
    for _ in range(2):
        before = model[0].weight.detach().clone()
        is_broken[0] = True
        backward(model)
        with pytest.raises(KeyError):
            optimizer.step()
        is_broken[0] = False
        if not is_tried_again and not algorithm.keeps_unsent:
            optimizer.zero_grad()
            backward(model)
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(model[0].weight, before - step)
    engine.close()


@dataclass(frozen=True, kw_only=True)
class Late(Algorithm):
    """Averages when a step begins, and keeps the sum of what it has found."""

    sums: list[float] = field(default_factory=list)

    def on_step_begin(self, context: Context) -> None:
        self.sums.append(sum(bucket.gradients.sum().item() for bucket in context.buckets))
        for bucket in context.buckets:
            context.communicator.all_reduce_mean_(bucket.gradients)


def clip(parameter: nn.Parameter) -> None:
    parameter.grad = parameter.grad.clamp(-0.5, 0.5)


def give(parameter: nn.Parameter) -> None:
    parameter.grad = torch.full_like(parameter, 0.5)


def replace_memory(parameter: nn.Parameter) -> None:
    parameter.grad.data = parameter.grad.clamp(-0.5, 0.5)


@pytest.mark.parametrize("change", [clip, give, replace_memory])
def test_an_algorithm_that_acts_where_a_step_begins_finds_the_gradients_of_the_script(change):
    model = StackedModel(layers(3, 4, 5), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = Late()
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(2))
    first, second = model.parameters()
    for _ in range(2):
        optimizer.zero_grad()
        before = first.detach().clone()
        model(torch.ones(2, 2, 3)).sum().backward()
        change(first)
        first.grad[1] = -first.grad[0]  # of another worker
        second.grad = None
        optimizer.step()
        assert torch.equal(first, before) and algorithm.sums[-1] == 0.0
        assert first.grad.eq(0).all() and second.grad is None
    engine.close()


def test_it_takes_no_gradients_of_no_sync_alone():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, Late())
    with engine.no_sync():
        backward(model)
    with pytest.raises(ValueError, match=r"all accumulated within no_sync\(\)"):
        optimizer.step()
    backward(model)
    optimizer.step()
    assert engine.algorithm.sums == [2 * 2 * 12]
    engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), Decentralized()])
@pytest.mark.parametrize("first", [0, 2])
def test_a_step_on_gradients_of_ones_own_is_refused_where_workers_meet_in_backward(
    algorithm, first
):
    model = layers(3, 4)
    engine, optimizer = engine_of(model, algorithm)
    for _ in range(first):
        backward(model)
        optimizer.step()
    give_own_gradients(model)
    with pytest.raises(ValueError, match=r"^'0.weight' .* gradient that no backward pass of the"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    engine.close()


def test_gradients_of_zero_are_nobodys():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    engine.close()


@pytest.mark.parametrize("algorithm", [SGP(overlap=True), LocalSGD(interval=2)])
def test_it_is_taken_where_they_do_not(algorithm):
    model = layers(3, 4)
    engine, optimizer = engine_of(model, algorithm)
    before = model[0].weight.detach().clone()
    give_own_gradients(model)
    optimizer.step()
    torch.testing.assert_close(model[0].weight, before - 0.1)
    engine.close()


def test_a_state_that_was_taken_is_nobodys_but_its_own():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, ChocoSGD())
    state = engine.state_dict()
    kept = copy.deepcopy(state)
    engine.load_state_dict(state)
    backward(model)
    optimizer.step()
    saved, before = (repr(one["state"]) for one in (state, kept))
    assert saved == before and repr(engine.state_dict()["state"]) != before
    assert [one["step"] for one in (state, engine.state_dict())] == [0, 1]
    engine.close()


def test_the_end_leaves_hooks_neither_on_the_model_nor_on_the_optimizer():
    model = layers(3, 4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def num_hooks() -> list[int]:
        parts = [hooks for m in model.modules() for hooks in vars(m).items()]
        held = [*parts, *vars(optimizer).items()]
        held += [(name, getattr(p, name)) for p in model.parameters() for name in OF_PARAMETERS]
        return [len(hooks or ()) for name, hooks in held if name.endswith("hooks")]

    before = num_hooks()
    engine = Engine(model, optimizer, ChocoSGD(), StackedCommunicator(1))
    assert num_hooks() != before
    engine.close()
    assert sum(num_hooks()) == sum(before)


def test_the_end_of_an_engine_is_that_of_its_threads():
    threads = []

    class Watched(Recording):
        def on_step_end(self, context):
            threads.append(threading.current_thread())

    model = layers(3, 4)
    engine, optimizer = engine_of(model, Watched())
    backward(model)
    optimizer.step()
    (thread,) = threads
    assert thread is not threading.current_thread() and thread.is_alive()
    engine.close()
    thread.join(10)
    assert not thread.is_alive()


def test_what_was_waited_for_beside_training_may_be_left_out():
    """As the app does after an evaluation."""
    model = layers(3, 4)
    engine, optimizer = engine_of(model, Recording())
    engine.exposed_communication_s = 1000.0
    assert engine.exposed_communication_s == 1000.0
    backward(model)
    optimizer.step()
    assert 1000.0 < engine.exposed_communication_s < 1100.0
    engine.close()


@pytest.mark.parametrize("skipped", [1, 2])
def test_steps_that_were_skipped_count_for_the_algorithm_too(skipped):
    """Of four workers, whose weights are averaged at every second step."""
    model, weight, engine = stacked(Decentralized(interval=2))
    engine.skip_to(skipped)
    before = weight.detach().clone()
    model(torch.zeros(4, 2, 3)).sum().backward()
    assert torch.equal(weight, before) == (skipped == 1)
    engine.close()


def test_nothing_is_summed_up_where_no_average_replaces_weights(monkeypatch):
    """It would take milliseconds of each step."""
    summed = []

    def checksum(bucket):
        summed.append(bucket)
        return torch.zeros(1)

    monkeypatch.setattr("bagua_algos.engine.script.unseen.checksum", checksum)
    for algorithm, num_sums in ((Decentralized(), 2), (SGP(overlap=True), 0)):
        model = layers(3, 4)
        engine, _ = engine_of(model, algorithm)
        backward(model)
        assert len(summed) == num_sums
        summed.clear()
        engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2)])
def test_no_step_is_taken_within_the_consensus(algorithm):
    model = layers(3, 4, 5)
    engine, optimizer = engine_of(model, algorithm)
    others = [torch.optim.SGD(model[1].parameters(), lr=0.1)] if algorithm.workers_agree else []
    before = [p.detach().clone() for p in model.parameters()]
    with engine.consensus():
        with engine.consensus():
            backward(model)
        for one in (optimizer, *others):
            with pytest.raises(ValueError, match=r"steps within consensus.* train after it$"):
                one.step()
        get_optimizer_state_dict(model, optimizer)
    assert all(map(torch.equal, model.parameters(), before))
    optimizer.step()
    assert not any(map(torch.equal, model.parameters(), before))
    engine.close()


def test_after_a_consensus_a_forward_begins_a_step_again():
    model, algorithm = layers(3, 4), Recording()
    engine, _ = engine_of(model, algorithm)
    with engine.consensus():
        model(torch.ones(2, 3))
    assert algorithm.moments == []
    model(torch.ones(2, 3))
    engine.dispatcher.wait_exposed()
    assert algorithm.moments == ["forward"]
    engine.close()


def test_what_is_loaded_within_the_consensus_is_not_what_a_step_begins_with():
    """The weights of each worker, which are others than their mean, return."""
    model, weight, engine = stacked(LocalSGD(interval=3, outer=Nesterov()))
    before = weight.detach().clone()
    with engine.consensus():
        mean = copy.deepcopy(model.state_dict())
        model.load_state_dict(mean)
    assert torch.equal(weight, before)
    model(torch.zeros(4, 2, 3)).sum().backward()
    engine.context.optimizer.step()
    engine.close()


def test_weights_that_were_moved_before_a_load_are_those_to_return_to():
    """`vector_to_parameters` moves them. Other weights are then loaded for a while."""
    model = layers(3, 4)
    engine, optimizer = engine_of(model, ChocoSGD())
    model[0].weight.data = model[0].weight.data + 1
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: 0 * x for name, x in own.items()})
    model.load_state_dict(own)
    backward(model)
    optimizer.step()
    engine.close()


class Careless(torch.optim.SGD):
    """Takes a closure, and does not call it."""

    def step(self, closure=None):
        return super().step()


def test_a_closure_that_its_optimizer_does_not_call_is_told():
    model = layers(3, 4)
    optimizer = Careless(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    with pytest.raises(ValueError, match="has not called its closure"):
        optimizer.step(lambda: backward(model))
    backward(model)
    optimizer.step()
    engine.close()


class Enlarging(Algorithm):
    """Has a part of the optimizer's step of its own."""

    def on_step_end(self, context):
        for bucket in context.buckets:
            bucket.weights.add_(10)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_scripts_post_hooks_come_after_the_algorithms_part_of_a_step(is_before):
    """In their order: these clamp weights, and keep them."""
    kept = []

    def clamp(optimizer, args, kwargs):
        with torch.no_grad():
            model[0].weight.clamp_(-0.5, 0.5)

    def keep(optimizer, args, kwargs):
        kept.append(model[0].weight.detach().clone())

    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for is_script in (is_before, not is_before):
        if is_script:
            optimizer.register_step_post_hook(clamp)
            optimizer.register_step_post_hook(keep)
        else:
            engine = Engine(model, optimizer, Enlarging(), StackedCommunicator(1))
    backward(model)
    optimizer.step()
    engine.close()
    (weight,) = kept
    assert weight.eq(0.5).all() and model[0].weight.equal(weight)


class Around(torch.optim.SGD):
    """Steps another optimizer in its own step, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([torch.zeros(1)], lr=0.1)

    def step(self, closure=None):
        return self.inner.step(closure)


def test_a_step_within_another_optimizers_is_a_step():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    outer = Around(optimizer)
    for step in range(2):
        backward(model)
        outer.step()
        assert algorithm.moments == ["forward", *PASS, f"step {step} end"]
        algorithm.moments.clear()
    engine.close()


def test_a_process_that_sees_a_shard_alone_is_warned_of_gradients_thrown_away(sharded):
    """The others may have thrown nothing away, and would wait for it."""
    model, workers = sharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, TopK(ratio=0.1), workers)
    backward(model)
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match=r"^the gradients of the last backward pass were thrown"):
        backward(model)
    optimizer.step()
    with warnings.catch_warnings(action="error"):
        backward(model)
    bagua_algos.release(model)


class Halving(Algorithm):
    """Halves the weights when the optimizer has loaded a state."""

    def on_optimizer_loaded(self, context):
        for bucket in context.buckets:
            bucket.weights.mul_(0.5)


def test_shards_take_what_an_algorithm_makes_of_them_when_a_state_is_loaded(sharded):
    model, workers = sharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, Halving(), workers)
    before = [p.full_tensor().clone() for p in model.parameters()]
    optimizer.load_state_dict(optimizer.state_dict())
    for parameter, weights in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.full_tensor(), weights / 2)
    bagua_algos.release(model)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_unit_of_shards_that_was_replaced_is_refused(sharding, set_to_none):
    """Its last gradients may be there still."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    sharding.shard(model[1])
    sharding.shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), sharding.workers)
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    model[1] = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"was replaced after the model was distributed"):
        backward(model)
    bagua_algos.release(model)
