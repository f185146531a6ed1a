from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bagua_algos.algorithms.choco_sgd import ChocoSGD
from bagua_algos.algorithms.decentralized import Decentralized
from bagua_algos.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_algos.communication.topology import (
    Complete,
    Exponential,
    RandomMatching,
    Ring,
    ShiftOne,
    StaticExponential,
)
from bagua_algos.compressors import QSGD
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from tests.bagua_algos.gossip import (
    DIMENSION,
    NUM_STEPS,
    Oracle,
    assert_equal_but_for_ties,
    descend,
    follows_sgd_on_the_mean_gradient,
    minmax_uint8,
    optima,
    spread,
    train,
)
from tests.bagua_algos.recorder import Recorder

LEARNING_RATE, GAMMA = 0.1, 0.7


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The element of greatest magnitude, all others zero (sent as they are: only values matter)."""

    unbiased: ClassVar[bool] = False

    def wire_bytes(self, num_elements):
        return 4 * num_elements

    def compress(self, x, draw=None):
        place = x.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(x).scatter_(-1, place, x.gather(-1, place)).view(torch.uint8)

    def decompress(self, payload, num_elements):
        return payload.view(torch.float32)


@dataclass(frozen=True, kw_only=True)
class RandomTenth(Largest):
    """Each element with a probability of a tenth, times `scale`: unbiased with a scale of ten."""

    scale: float

    def compress(self, x, draw=None):
        generator = torch.Generator().manual_seed(draw.step)
        kept = torch.rand(x.shape, generator=generator) < 0.1
        return (x * kept * self.scale).view(torch.uint8)


def oracle(topology, world_size):
    """Algorithm 2 as it is written: xhat of everyone, and differences weighted by A."""
    A = torch.from_numpy(topology.mixing(0, world_size).matrix()).float()
    c = optima(world_size)
    x, xhat = torch.zeros_like(c), torch.zeros_like(c)
    trajectory = []
    for _ in range(NUM_STEPS):
        half = x - LEARNING_RATE * (x - c)
        xhat = xhat + minmax_uint8(half - xhat)
        x = half.clone()
        for i in range(world_size):
            for j in range(world_size):
                x[i] += GAMMA * A[i, j] * (xhat[j] - xhat[i])
        trajectory.append(x)
    return torch.stack(trajectory)


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("topology", [Ring(), Complete()])
def test_the_memory_efficient_form_equals_the_papers(topology, world_size):
    algorithm = ChocoSGD(topology=topology, gamma=GAMMA)
    ours, engine = descend(algorithm, world_size, learning_rate=LEARNING_RATE)
    assert_equal_but_for_ties(ours, oracle(topology, world_size), LEARNING_RATE)
    (public,) = engine.context.state
    A = torch.from_numpy(topology.mixing(0, world_size).matrix()).float()
    torch.testing.assert_close(public.averaged, A @ public.own, rtol=0, atol=1e-5)


def test_one_worker_is_plain_torch():
    plain = Oracle(1, torch.float32)
    for step in range(NUM_STEPS):
        plain.backward(step)
        plain.step()
    torch.testing.assert_close(
        train(ChocoSGD(), 1, torch.float32), plain.weights, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("compressor", [MinMaxUInt8(), Largest(), RandomTenth(scale=1)])
def test_the_mean_moves_as_in_sgd_on_the_mean_gradient_whatever_the_code(compressor):
    trajectory, _ = descend(ChocoSGD(compressor=compressor, gamma=0.1), 8)
    assert follows_sgd_on_the_mean_gradient(trajectory, LEARNING_RATE)


def test_a_quadratic_converges_to_the_mean_optimum_as_far_as_full_precision_does():
    full, _ = descend(Decentralized(), 8, num_steps=150)
    ours, _ = descend(ChocoSGD(), 8, num_steps=150)
    better_connected, _ = descend(ChocoSGD(topology=Complete()), 8, num_steps=150)
    assert (ours[-1].mean(0) - optima(8).mean(0)).abs().max() < 1e-4
    assert spread(better_connected[-1]) < spread(ours[-1]) < 1.5 * spread(full[-1])


def distance_from_the_mean_optimum(algorithm):
    def decaying(step):
        return 0.1 / (1 + step / 50)

    trajectory, _ = descend(algorithm, 8, learning_rate=decaying, num_steps=600)
    return (trajectory[-1] - optima(8).mean(0)).abs().max().item()


def test_the_coarsest_code_converges_with_a_small_step_and_diverges_with_a_large_one():
    assert distance_from_the_mean_optimum(ChocoSGD(compressor=Largest(), gamma=0.1)) < 0.6
    assert not distance_from_the_mean_optimum(ChocoSGD(compressor=Largest(), gamma=1)) < 100


def test_a_sparse_random_code_converges_here_and_diverges_in_dcd():
    choco = ChocoSGD(compressor=RandomTenth(scale=1), gamma=0.1)
    assert distance_from_the_mean_optimum(choco) < 0.6
    with pytest.warns(UserWarning, match=r"RandomTenth errs by .* 1803\.06443"):
        dcd = LowPrecisionDecentralized(compressor=RandomTenth(scale=10))
    assert not distance_from_the_mean_optimum(dcd) < 100


def test_the_same_run_gives_the_same_bits():
    first, second = (train(ChocoSGD(), 4, torch.float32) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("topology", "world_size", "num_messages"), [(Ring(), 2, 1), (Ring(), 8, 2), (Complete(), 8, 7)]
)
def test_it_sends_a_code_to_each_neighbour(topology, world_size, num_messages):
    recorder = Recorder()
    descend(ChocoSGD(topology=topology), world_size, recorder=recorder)
    code_bytes = MinMaxUInt8().wire_bytes(DIMENSION)
    assert recorder.bytes_sent == NUM_STEPS * num_messages * code_bytes


@pytest.mark.parametrize("gamma", [0, -0.1, 1.5, float("nan")])
def test_a_step_size_out_of_range_is_refused(gamma):
    with pytest.raises(ValueError, match=f"gamma must be .* got {gamma}"):
        ChocoSGD(gamma=gamma)


@pytest.mark.parametrize("compressor", [QSGD(bits=2), RandomTenth(scale=10)])
def test_a_code_that_errs_by_more_than_it_is_given_is_refused(compressor):
    with pytest.raises(ValueError, match=r"errs by less than it is given .*1902\.00340.* errs by"):
        ChocoSGD(compressor=compressor)


@pytest.mark.parametrize(
    "topology", [Exponential(), StaticExponential(), ShiftOne(), RandomMatching()]
)
def test_a_topology_that_changes_or_is_one_way_is_refused(topology):
    with pytest.raises(ValueError, match=f"symmetric.* which {type(topology).__name__} is not"):
        ChocoSGD(topology=topology)
