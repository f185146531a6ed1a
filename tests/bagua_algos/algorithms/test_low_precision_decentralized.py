import pytest
import torch

from bagua_algos.algorithms.decentralized import Decentralized
from bagua_algos.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_algos.communication.topology import Complete, Exponential
from bagua_algos.compressors import QSGD, SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from tests.bagua_algos.gossip import (
    DIMENSION,
    NUM_STEPS,
    Oracle,
    assert_equal_but_for_ties,
    descend,
    minmax_uint8,
    optima,
    spread,
    train,
)
from tests.bagua_algos.recorder import Recorder

LEARNING_RATE = 0.1


def oracle(world_size, interval):
    """Bagua's formula with replicas of left and right, on the quadratics of `gossip`."""
    c = optima(world_size)
    x, w, L, R = (torch.zeros_like(c) for _ in range(4))
    trajectory = []
    for step in range(1, NUM_STEPS + 1):
        x = x - LEARNING_RATE * (x - c)
        if step % interval == 0:
            z = x + L / 2 - 3 / 2 * w if world_size == 2 else x + L / 3 + R / 3 - 5 / 3 * w
            code = minmax_uint8(z)
            w, L, R = w + code, L + code.roll(1, 0), R + code.roll(-1, 0)
            x = w
        trajectory.append(x)
    return torch.stack(trajectory)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
def test_it_equals_an_oracle_of_plain_torch(world_size, interval):
    algorithm = LowPrecisionDecentralized(interval=interval)
    ours, _ = descend(algorithm, world_size, learning_rate=LEARNING_RATE)
    # The change of several steps has levels as far apart as several learning rates.
    assert_equal_but_for_ties(ours, oracle(world_size, interval), interval * LEARNING_RATE)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_replicas_are_what_they_replicate_bit_for_bit(world_size):
    trajectory, engine = descend(LowPrecisionDecentralized(), world_size)
    (replicas,) = engine.context.state
    assert torch.equal(replicas.own, trajectory[-1])
    hears_from = {2: [1], 3: [1, 2]}.get(world_size, [1, -1])
    assert len(replicas.neighbours) == len(hears_from)
    for shift, neighbour in zip(hears_from, replicas.neighbours, strict=True):
        assert torch.equal(neighbour, replicas.own.roll(shift, 0))


def test_one_worker_sends_nothing_and_is_plain_torch():
    recorder, plain = Recorder(), Oracle(1)
    for step in range(NUM_STEPS):
        plain.backward(step)
        plain.step()
    ours = train(LowPrecisionDecentralized(), 1)
    torch.testing.assert_close(ours, plain.weights, rtol=0, atol=1e-10)
    descend(LowPrecisionDecentralized(), 1, recorder=recorder)
    assert recorder.operations == []


def test_it_stays_near_full_precision():
    """Every step adds an error of half a level of what changed in it."""
    ours = train(LowPrecisionDecentralized(), 4, torch.float32)
    full = train(Decentralized(), 4, torch.float32)
    assert (ours - full).abs().max() < 0.05 * full.abs().max()


def test_a_quadratic_converges_to_the_mean_optimum_as_far_as_full_precision_does():
    ours, _ = descend(LowPrecisionDecentralized(), 8, num_steps=150)
    full, _ = descend(Decentralized(), 8, num_steps=150)
    assert (ours[-1].mean(0) - optima(8).mean(0)).abs().max() < 0.02
    assert spread(ours[-1]) < 1.2 * spread(full[-1])


def test_the_same_run_gives_the_same_bits():
    first, second = (train(LowPrecisionDecentralized(), 4, torch.float32) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("world_size", "num_messages"), [(2, 1), (3, 2), (8, 2)])
def test_it_sends_a_code_to_each_neighbour(world_size, num_messages):
    recorder = Recorder()
    descend(LowPrecisionDecentralized(), world_size, recorder=recorder)
    code_bytes = MinMaxUInt8().wire_bytes(DIMENSION)
    assert recorder.bytes_sent == NUM_STEPS * num_messages * code_bytes


def test_codes_travel_where_the_interval_ends():
    recorder = Recorder()
    descend(LowPrecisionDecentralized(interval=6), 2, recorder=recorder, num_steps=17)
    assert [operation.name for operation in recorder.operations] == ["exchange"] * 2


@pytest.mark.parametrize("interval", [0, 2.5])
def test_an_interval_of_no_step_is_refused(interval):
    with pytest.raises(ValueError, match=f"interval must be a whole .* got {interval}"):
        LowPrecisionDecentralized(interval=interval)


@pytest.mark.parametrize("topology", [Exponential(), Complete()])
def test_other_topologies_are_refused_with_the_reason(topology):
    with pytest.raises(ValueError, match=f"replica .* must be Ring, not {type(topology).__name__}"):
        LowPrecisionDecentralized(topology=topology)


@pytest.mark.parametrize("compressor", [SignScale(), QSGD(bits=2)])
def test_a_code_too_coarse_for_any_ring_warns(compressor):
    name = type(compressor).__name__
    with pytest.warns(UserWarning, match=rf"{name} errs by .* 1803\.06443.*may diverge"):
        LowPrecisionDecentralized(compressor=compressor)
    LowPrecisionDecentralized(compressor=QSGD(bits=4))  # and finer ones do not
