import pytest
import torch
from torch import nn

from bagua_algos.algorithms.sgp import SGP
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import (
    Complete,
    Exponential,
    Ring,
    ShiftOne,
    StaticExponential,
)
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import on_worker_axis
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


def oracle(topology, world_size, overlap):
    """Algorithm 1 for models in a loop: x, w and z as the paper has them."""
    world = Oracle(world_size)
    x, w = world.weights, torch.ones(world_size, 1, dtype=torch.float64)
    for step in range(NUM_STEPS):
        A = torch.from_numpy(topology.mixing(step, world_size).matrix())
        z = world.weights
        world.backward(step)
        world.step()
        change = world.weights - z
        x = A @ x + change if overlap else A @ (x + change)
        w = A @ w
        world.weights = x / w
    return world.weights


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("topology", [Exponential(), StaticExponential(), Star()])
@pytest.mark.parametrize("overlap", [False, True])
def test_it_equals_an_oracle_of_plain_torch(topology, world_size, overlap):
    ours = train(SGP(topology=topology, overlap=overlap), world_size)
    torch.testing.assert_close(ours, oracle(topology, world_size, overlap), rtol=0, atol=1e-10)


@pytest.mark.parametrize("overlap", [False, True])
def test_one_worker_is_plain_torch(overlap):
    plain = Oracle(1)
    for step in range(NUM_STEPS):
        plain.backward(step)
        plain.step()
    ours = train(SGP(overlap=overlap), 1)
    torch.testing.assert_close(ours, plain.weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("topology", [Exponential(), Ring(), ShiftOne(), Complete()])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_mean_moves_as_in_sgd_on_the_mean_gradient_and_w_stays_one(topology, overlap):
    trajectory, engine = descend(SGP(topology=topology, overlap=overlap), 8)
    assert follows_sgd_on_the_mean_gradient(trajectory, learning_rate=0.1)
    torch.testing.assert_close(engine.context.state.denominators, torch.ones(8).double())


@pytest.mark.parametrize("overlap", [False, True])
def test_one_way_messages_of_unequal_weight_still_find_the_mean_optimum(overlap):
    """With rows that do not sum to 1, averages drift to the star's centre; their ratio does not."""
    trajectory, engine = descend(
        SGP(topology=Star(), overlap=overlap), 5, learning_rate=0.02, num_steps=600
    )
    w = engine.context.state.denominators
    assert w.max() > 2 * w.min()
    torch.testing.assert_close(w.sum(), torch.tensor(5.0).double())
    (x_wn,) = engine.context.state.numerators
    of_all = x_wn[:, : optima(5).shape[1]].sum(0) / 5
    assert (of_all - optima(5).mean(0)).abs().max() < 0.02
    assert (trajectory[-1] - optima(5).mean(0)).abs().max() < 0.2


def test_better_connected_workers_are_nearer_to_each_other():
    spreads = [
        spread(descend(SGP(topology=topology), 8, num_steps=150)[0][-1])
        for topology in (Ring(), StaticExponential(), Complete())
    ]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 1e-5


@pytest.mark.parametrize("overlap", [False, True])
def test_accumulated_gradients_push_once_a_step(overlap):
    recorder = Recorder()
    whole, _ = descend(SGP(overlap=overlap), 4)
    parts, engine = descend(SGP(overlap=overlap), 4, micro_batches=3, recorder=recorder)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert len(recorder.operations) == engine.context.state.num_mixings == NUM_STEPS


def test_it_sends_one_message_of_its_weights_a_step():
    """37 elements are padded to 64."""
    recorder = Recorder()
    descend(SGP(), 4, recorder=recorder)
    assert recorder.bytes_sent == NUM_STEPS * 64 * 4
    assert {operation.name for operation in recorder.operations} == {"exchange"}


def test_a_topology_that_cannot_connect_the_workers_is_refused_at_the_start():
    with pytest.raises(ValueError, match="even number of them, got 3"):
        descend(SGP(topology=ShiftOne()), 3, num_steps=0)


def test_a_step_without_a_forward_mixes_as_one_with_it():
    """By gradients that a script has made, as evolution strategies do."""

    def steps(*, forward):
        torch.manual_seed(0)
        communicator = StackedCommunicator(4)
        model = on_worker_axis(nn.Linear(3, 5), communicator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Engine(model, optimizer, SGP(overlap=True), communicator)
        for _ in range(3):
            if forward:
                model(torch.ones(4, 1, 3))
            for parameter in model.parameters():
                of_worker = torch.arange(4.0).view(4, *[1] * (parameter.dim() - 1))
                parameter.grad = of_worker.expand_as(parameter).clone()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for without, expected in zip(steps(forward=False), steps(forward=True), strict=True):
        assert torch.equal(without, expected)
