from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from bagua_algos.algorithms.decentralized import Decentralized, DecentralizedState
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import (
    Complete,
    Exponential,
    RandomMatching,
    Ring,
    ShiftOne,
    StaticExponential,
)
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script import unseen
from tests.bagua_algos.cases import batch, losses, make_model, make_optimizer, on_worker_axis
from tests.bagua_algos.gossip import (
    NUM_STEPS,
    Oracle,
    Star,
    descend,
    follows_sgd_on_the_mean_gradient,
    optima,
    spread,
    train,
)
from tests.bagua_algos.recorder import Recorder

ALL = [Complete(), Ring(), Exponential(), StaticExponential(), ShiftOne(), RandomMatching(seed=3)]


def oracle(topology, world_size, interval=1):
    """x+ = A x - (the optimizer's step at x), for models in a loop."""
    world = Oracle(world_size)
    for step in range(NUM_STEPS):
        world.backward(step)
        if step % interval == 0:
            A = topology.mixing(step // interval, world_size).matrix()
            world.weights = torch.from_numpy(A) @ world.weights
        world.step()
    return world.weights


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("topology", ALL)
def test_it_equals_an_oracle_of_plain_torch(topology, world_size):
    if isinstance(topology, ShiftOne) and world_size % 2:
        with pytest.raises(ValueError, match="even number of them, got 3"):
            train(Decentralized(topology=topology), world_size)
        return
    ours = train(Decentralized(topology=topology), world_size)
    torch.testing.assert_close(ours, oracle(topology, world_size), rtol=0, atol=1e-10)
    assert spread(ours) > 1e-3


def test_with_an_interval_the_steps_between_are_local_and_the_topology_goes_on():
    ours = train(Decentralized(topology=Exponential(), interval=3), 4)
    expected = oracle(Exponential(), 4, interval=3)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


def test_one_worker_is_plain_torch():
    torch.testing.assert_close(train(Decentralized(), 1), oracle(Ring(), 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("topology", ALL)
def test_the_mean_moves_as_in_sgd_on_the_mean_gradient(topology):
    trajectory, _ = descend(Decentralized(topology=topology), 8)
    assert follows_sgd_on_the_mean_gradient(trajectory, learning_rate=0.1)


def test_better_connected_workers_are_nearer_to_each_other_and_to_the_mean_optimum():
    spreads = []
    for algorithm in (
        Decentralized(interval=5),
        Decentralized(),
        Decentralized(topology=StaticExponential()),
        Decentralized(topology=Complete()),
    ):
        trajectory, _ = descend(algorithm, 8, num_steps=150)
        torch.testing.assert_close(
            trajectory[-1].mean(0), optima(8).mean(0), rtol=0, atol=1e-4, msg=str(algorithm)
        )
        spreads.append(spread(trajectory[-1]))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] < spread(optima(8))
    smaller_steps, _ = descend(Decentralized(), 8, learning_rate=0.01, num_steps=800)
    assert spread(smaller_steps[-1]) < spreads[1] / 5


def test_averages_of_accumulated_gradients_are_made_once_a_step():
    recorder = Recorder()
    algorithm = Decentralized(topology=Exponential())
    whole, _ = descend(algorithm, 4)
    parts, engine = descend(algorithm, 4, micro_batches=3, recorder=recorder)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert len(recorder.operations) == NUM_STEPS
    assert engine.context.state.num_backwards == NUM_STEPS


def test_it_sends_what_it_says():
    """A bucket of 37 elements is padded to 64 for up to 4 workers."""
    for topology, num_messages in ((Exponential(), 1), (Ring(), 2), (ShiftOne(), 1)):
        recorder = Recorder()
        descend(Decentralized(topology=topology, interval=2), 4, recorder=recorder)
        assert recorder.bytes_sent == NUM_STEPS / 2 * num_messages * 64 * 4


def test_weights_travel_before_backward_and_change_after_it():
    communicator = StackedCommunicator(4, observer=(recorder := Recorder()))
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, Decentralized(), communicator)
    weights = engine.context.buckets[0].weights
    weights.copy_(torch.arange(4.0)[:, None].expand_as(weights))
    recorder.operations.clear()
    outputs = model(torch.stack([batch(0, rank)[0] for rank in range(4)]))
    assert torch.equal(weights, torch.arange(4.0)[:, None].expand_as(weights))
    losses(outputs, torch.stack([batch(0, rank)[1] for rank in range(4)])).backward()
    assert [operation.name for operation in recorder.operations] == ["exchange", "exchange"]
    ring = torch.tensor([4 / 3, 1, 2, 5 / 3])[:, None]
    torch.testing.assert_close(weights, ring.expand_as(weights))
    engine.close()


@pytest.mark.parametrize("num_forwards", [1, 2])
@pytest.mark.parametrize("is_local", [False, True])
def test_another_pass_through_a_graph_of_before_the_average_is_refused(num_forwards, is_local):
    """It would take its gradients with other weights. All but the last may be within no_sync."""
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, Decentralized(), communicator)
    for step in range(3):
        x_wb = torch.stack([batch(step, rank)[0] for rank in range(4)])
        outputs = [model(x_wb) for _ in range(num_forwards)]
        both = outputs[0].sum(), outputs[-1].square().sum()
        optimizer.zero_grad()
        parameters = list(model.parameters())
        expected = torch.autograd.grad(sum(both), parameters, retain_graph=True)
        with engine.no_sync() if is_local else nullcontext():
            both[0].backward(retain_graph=num_forwards == 1)
        if not is_local:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                both[1].backward()
            break
        both[1].backward()
        for parameter, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)
        optimizer.step()
    engine.close()


def test_weights_that_are_loaded_after_an_overflow_are_those_that_travel_next():
    communicator = StackedCommunicator(2)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    engine = Engine(model, optimizer, Decentralized(), communicator, grad_scaler=scaler)
    for factor in (1.0, float("inf"), 1.0):
        with torch.no_grad():
            for worker, weights in enumerate(engine.context.buckets[0].weights):
                weights.fill_(worker + factor if factor == 1 else 7)
        optimizer.zero_grad()
        x_wb = torch.stack([batch(0, rank)[0] for rank in range(2)])
        scaler.scale(factor * model(x_wb).sum()).backward()
        expected = 1.5 if factor == 1 else torch.tensor([[7.0], [7.0]])
        assert engine.context.buckets[0].weights.eq(expected).all()
        scaler.step(optimizer)
        scaler.update()
    assert engine.context.state.num_backwards == 2
    engine.close()


def test_what_cannot_work_is_refused_in_a_sentence():
    for interval in (0, 2.5):
        with pytest.raises(ValueError, match=f"interval must be a whole .* got {interval}"):
            Decentralized(interval=interval)
    with pytest.raises(ValueError, match=r"doubly stochastic .* which Star is not: take SGP"):
        Decentralized(topology=Star())


def test_a_topology_that_does_not_fit_the_workers_or_their_nodes_is_refused_first():
    optimizer = make_optimizer(make_model())
    even = Decentralized(topology=ShiftOne())
    with pytest.raises(ValueError, match="even number of them, got 3"):
        even.check(3, optimizer)
    even.check(4, optimizer)
    among_nodes = Decentralized(topology=ShiftOne(), hierarchical=True)
    among_nodes.check(3, optimizer)  # of which nodes are not known yet
    for nodes in (((0, 1), (2,)), ((0, 1, 2),), ((0,), (1,), (2,))):
        communicator = StackedCommunicator(3, nodes=nodes)
        model = on_worker_axis(make_model(), communicator)
        if len(nodes) == 3:
            with pytest.raises(ValueError, match="even number of them, got 3"):
                Engine(model, make_optimizer(model), among_nodes, communicator)
        else:
            Engine(model, make_optimizer(model), among_nodes, communicator).close()


def test_weights_are_replaced_where_they_travel():
    context = SimpleNamespace(state=DecentralizedState())
    found = []
    for context.state.num_backwards in range(7):
        found.append(Decentralized(interval=3).replaces_weights(context))
    assert found == [True, False, False, True, False, False, True]


def binarized(weights, kept):
    """BinaryConnect's own code: `kept` is what the optimizer changes, clipped after its step."""
    kept[:] = [weight.clamp_(-0.5, 0.5).clone() for weight in weights]
    for weight in weights:
        weight.sign_()


def put_back(weights, kept):
    for weight, own in zip(weights, kept, strict=True):
        weight.copy_(own)


def decayed(weights, kept):
    torch._foreach_mul_(weights, 0.9)


def nothing(weights, kept):
    pass


@pytest.mark.parametrize("first", [0, unseen.NUM_STEPS])
@pytest.mark.parametrize(
    ("before", "after", "is_undone"),
    [(binarized, put_back, True), (nothing, decayed, False), (binarized, nothing, False)],
)
def test_weights_that_are_put_back_before_the_step_undo_an_average(before, after, is_undone, first):
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, Decentralized(), communicator)
    engine.skip_to(first)
    refused = pytest.raises(ValueError, match=r" was put back between backward\(\) and .* SGP\(\)")
    weights, kept = [parameter.data for parameter in model.parameters()], []
    for step in range(3):
        before(weights, kept)
        optimizer.zero_grad()
        model(torch.stack([batch(step, rank)[0] for rank in range(4)])).sum().backward()
        after(weights, kept)
        is_seen = is_undone and not first and step == 1
        with refused if is_seen else nullcontext():
            optimizer.step()
        if is_seen:
            break
    engine.close()


def test_what_the_first_of_several_passes_has_made_may_be_put_back():
    """As sharpness-aware minimization does, where all workers have the same weights, too."""
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    engine = Engine(model, optimizer, Decentralized(topology=Complete()), communicator)
    weights, kept = [parameter.data for parameter in model.parameters()], []
    for step in range(3):
        for climb in (1.0, 0.9):
            if climb < 1:
                kept[:] = [weight.clone() for weight in weights]
            torch._foreach_mul_(weights, climb)
            x_wb = torch.stack([batch(step, 0)[0]] * 4)
            model(x_wb).sum().backward()
        put_back(weights, kept)
        optimizer.step()
        optimizer.zero_grad()
    engine.close()
