"""D_FP_S: what a topology's matrix says, by messages."""

import pytest
import torch

from bagua_algos.communication.primitives import mix
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import (
    Complete,
    Exponential,
    Ring,
    StaticExponential,
)
from tests.bagua_algos.communication.test_topology import ALL, STEPS, cases
from tests.bagua_algos.gossip import Star
from tests.bagua_algos.recorder import Recorder


@pytest.mark.parametrize(("topology", "world_size"), cases([*ALL, Star()]))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_mix_is_the_matrix(topology, world_size, dtype):
    torch.manual_seed(0)
    x_wn = torch.randn(world_size, 11).to(dtype)
    before = x_wn.clone()
    for step in STEPS:
        mixing = topology.mixing(step, world_size)
        mixed = mix(x_wn, mixing, StackedCommunicator(world_size))
        expected = torch.from_numpy(mixing.matrix()) @ x_wn.double()
        # An all-reduce stays in its type.
        tight = dtype != torch.bfloat16 or not mixing.averages_all
        torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=1e-6 if tight else 0.02)
        assert torch.equal(x_wn, before)


def test_the_mean_of_all_is_an_all_reduce_and_anything_else_whole_messages():
    def operations(topology, world_size):
        recorder = Recorder()
        communicator = StackedCommunicator(world_size, observer=recorder)
        mix(torch.ones(world_size, 10), topology.mixing(0, world_size), communicator)
        return [(operation.name, operation.bytes_sent) for operation in recorder.operations]

    assert operations(Complete(), 8) == [("all_reduce_mean", 70)]
    assert operations(Ring(), 3) == [("all_reduce_mean", 4 / 3 * 40)]
    assert operations(Ring(), 8) == [("exchange", 40)] * 2
    assert operations(Exponential(), 8) == [("exchange", 40)]
    assert operations(StaticExponential(), 8) == [("exchange", 40)] * 3
