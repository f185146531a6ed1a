"""QSGD, EF-SignSGD and fp8 as they train; ByteGrad's own tests are test_worker_axis.py's."""

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from bagua_algos import AllReduce, ByteGrad, CompressedAllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import QSGD, Cast, SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.engine import Engine
from host.conf import PACKAGED
from kernels.shared.philox_reference import uniforms
from tests.bagua_algos.cases import make_model, make_optimizer, on_worker_axis
from tests.bagua_algos.gradient_oracle import (
    NUM_PARAMETERS,
    averages,
    distance_on_a_quadratic,
    given_gradients,
    oracle,
    train,
)
from tests.bagua_algos.recorder import Recorder

EF_SIGNSGD = CompressedAllReduce(compressor=SignScale(), error_feedback=True)
FP8 = CompressedAllReduce(compressor=Cast(wire="fp8_e4m3"))


def qsgd(bits: int, seed: int = 0) -> CompressedAllReduce:
    return CompressedAllReduce(compressor=QSGD(bits=bits, group_size=100, seed=seed))


def chunked(x_Nn: Tensor) -> Tensor:
    """`[N, N, c]`, padded with the last element to whole chunks of 16."""
    world_size = len(x_Nn)
    padding = -x_Nn.shape[1] % (16 * world_size)
    return F.pad(x_Nn, (0, padding), mode="replicate").view(world_size, world_size, -1)


def signs(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0) * x.abs().mean(-1, keepdim=True)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ef_signsgd_equals_its_oracle(world_size):
    worker_error, owner_error = 0.0, 0.0

    def average(_, gradients):
        nonlocal worker_error, owner_error
        p = chunked(gradients) + worker_error
        worker_error = p - signs(p)
        m = signs(p).mean(0) + owner_error
        owner_error = m - signs(m)
        return signs(m).flatten()[:NUM_PARAMETERS]

    gradients = given_gradients(world_size)
    expected = torch.stack([average(step, g) for step, g in enumerate(gradients)])
    ours = averages(EF_SIGNSGD, gradients)
    torch.testing.assert_close(ours[:, 0], expected)
    assert torch.equal(ours, ours[:, :1].expand_as(ours))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_qsgd_equals_its_oracle(world_size, bits):
    """The oracle quantises chunk by chunk and group by group; draws are the same, by rank."""
    s = 2 ** (bits - 1) - 1

    def quantised(x, u):
        parts = zip(x.split(100), u.split(100), strict=True)
        return torch.cat([_quantised_group(g, v) for g, v in parts])

    def _quantised_group(g, u):
        y = (g.abs() / g.abs().max() * s).nan_to_num()  # a dead unit's gradients are all zero
        return g.abs().max() * g.sign() * (y.floor() + (u < y % 1)) / s

    def draws(step, stage, shape):
        streams = torch.tensor([[step, 0, rank] for rank in range(world_size)])
        return uniforms(shape[1:].numel(), streams, (7, stage)).view(shape)

    def average(step, gradients):
        x = chunked(gradients)
        u = draws(step, 0, x.shape)
        q = [
            [quantised(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(x, u, strict=True)
        ]
        m = torch.stack([torch.stack(rows) for rows in q]).mean(0)
        v = draws(step, 1, m.shape)
        return torch.cat([quantised(a, b) for a, b in zip(m, v, strict=True)])[:NUM_PARAMETERS]

    ours = train(world_size, qsgd(bits, seed=7))
    expected = oracle(world_size, average)
    torch.testing.assert_close(ours[0], expected, rtol=0, atol=1e-4)
    assert torch.equal(ours, ours[:1].expand_as(ours))


def test_fp8_equals_its_oracle():
    def fp8(x):
        scale = x.abs().amax(-1, keepdim=True) / 448
        return (x / scale).to(torch.float8_e4m3fn).float() * scale

    expected = oracle(
        4, lambda _, gradients: fp8(fp8(chunked(gradients)).mean(0)).flatten()[:NUM_PARAMETERS]
    )
    torch.testing.assert_close(train(4, FP8)[0], expected, rtol=0, atol=1e-4)


def test_the_seed_gives_the_same_bits_and_another_seed_others():
    first = train(4, qsgd(2), num_steps=3)
    assert torch.equal(train(4, qsgd(2), num_steps=3), first)
    assert not torch.equal(train(4, qsgd(2, seed=1), num_steps=3), first)


@pytest.mark.parametrize("algorithm", [EF_SIGNSGD, FP8, qsgd(2), qsgd(4), ByteGrad()])
def test_messages_are_as_long_as_predicted(algorithm):
    recorder = Recorder()
    train(4, algorithm, num_steps=1, observer=recorder)
    chunk = -(-NUM_PARAMETERS // 64) * 16
    num_bytes = algorithm.compressor.wire_bytes(chunk)
    assert recorder.messages == [("all_to_all", 4 * num_bytes), ("all_gather", num_bytes)]


@pytest.mark.parametrize("algorithm", [EF_SIGNSGD, FP8, qsgd(2), qsgd(4), qsgd(8)], ids=str)
def test_a_quadratic_converges(algorithm):
    assert distance_on_a_quadratic(algorithm, lr=0.02, num_steps=400) < 2e-3


def test_without_nodes_hierarchical_is_refused_before_training():
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    algorithm = CompressedAllReduce(compressor=MinMaxUInt8(), hierarchical=True)
    with pytest.raises(ValueError, match="needs to know which workers share a node"):
        Engine(model, make_optimizer(model), algorithm, communicator)


def test_a_narrower_type_is_of_all_reduces_family_and_other_codes_are_quantized():
    assert FP8.family == AllReduce().family
    assert {ByteGrad().family, EF_SIGNSGD.family, qsgd(4).family} == {"quantized"}


def test_bytegrad_is_the_same_in_the_library_and_on_the_command_line():
    config = OmegaConf.load(PACKAGED / "algo" / "bytegrad.yaml")
    options = {"error_feedback": config.error_feedback, "hierarchical": config.hierarchical}
    assert ByteGrad() == CompressedAllReduce(compressor=MinMaxUInt8(), **options)


def test_few_biased_bits_without_error_feedback_warn():
    with pytest.warns(
        UserWarning, match="SignScale is biased and keeps 1 bits.*error_feedback=true"
    ):
        CompressedAllReduce(compressor=SignScale())


def test_error_feedback_around_an_unbiased_code_warns_and_diverges():
    """What the warning says: two bits leave out more than they were given."""
    with pytest.warns(UserWarning, match="QSGD is unbiased.*error_feedback=false"):
        fed_back = CompressedAllReduce(compressor=QSGD(bits=2), error_feedback=True)
    assert distance_on_a_quadratic(fed_back, lr=0.05, num_steps=200) > 1
