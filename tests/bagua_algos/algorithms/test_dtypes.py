"""Weights of every type: by each algorithm right, or refused before anything is started."""

import pytest
import torch
from torch import Tensor, nn

from bagua_algos import (
    Algorithm,
    AllReduce,
    ByteGrad,
    CompressedAllReduce,
    LocalSGD,
    PowerSGD,
    TopK,
)
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import SignScale
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.untrained import make_alike_
from bagua_algos.outer_optimizer import Nesterov
from tests.bagua_algos.cases import NODES, on_worker_axis
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

WORLD_SIZE, NUM_STEPS = 2, 12  # QAdam's rows switch after ten steps
NUM_REPEATED = 400
OF_COMPLEX = {
    *("all_reduce", "all_reduce_hierarchical", "async_model_average", "sgp", "sgp_overlapped"),
    *("decentralized", "decentralized_random", "decentralized_shift_one"),
    *("decentralized_hierarchical", "decentralized_exponential_hierarchical"),
    *("local_sgd", "local_sgd_hierarchical", "post_local_sgd", "slowmo", "diloco"),
}


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Affine(nn.Module):
    """The squared distance of an affine map from where half of it stands, a loss each row. As a
    `twin`, complex parameters are pairs of real ones.
    """

    def __init__(self, dtype: torch.dtype, *, twin: bool = False) -> None:
        super().__init__()
        pairs = [0.3 * numbers(*shape, 2, seed=7) for shape in ((23, 17), (17,))]
        if dtype.is_complex and not twin:
            pairs = [torch.view_as_complex(pair) for pair in pairs]
        elif not twin:
            pairs = [pair[..., 0].contiguous() for pair in pairs]
        self.twin, own = twin, dtype.to_real() if twin else dtype
        self.weight, self.bias = (nn.Parameter(pair.to(own)) for pair in pairs)

    def forward(self, x_bd: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.twin:
            weight, bias = torch.view_as_complex(weight), torch.view_as_complex(bias)
        y = x_bd.to(weight.dtype) @ weight + bias
        error = y - 0.5 * y.detach() - 1
        return (error * error.conj()).real.mean(-1)


def train(name: str, dtype: torch.dtype, *, twin: bool = False) -> tuple[Tensor, float]:
    """All weights `[w, n]` after some steps, and the spread."""
    communicator = StackedCommunicator(WORLD_SIZE, nodes=NODES[WORLD_SIZE])
    model = on_worker_axis(Affine(dtype, twin=twin), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    engine = Engine(model, optimizer, ROWS[name](), communicator, bucket_bytes=256)
    for step in range(NUM_STEPS):
        batches = [numbers(8, 23, seed=10 * step + rank) for rank in range(WORLD_SIZE)]
        optimizer.zero_grad()
        model(torch.stack(batches).to(dtype.to_real())).mean(1).sum().backward()
        optimizer.step()
    rows = [p.detach().clone() for p in model.parameters()]
    with engine.consensus() as spread:
        engine.close()
    rows = [torch.view_as_real(row) if row.is_complex() else row for row in rows]
    return torch.cat([row.flatten(1) for row in rows], 1), spread


@pytest.mark.parametrize("name", ROWS)
def test_float64_trains_as_float32_does_but_finer(name):
    fine, _ = train(name, torch.float64)
    coarse, _ = train(name, torch.float32)
    error = (fine - coarse).abs()
    assert (error > 3e-6).double().mean() < 0.03  # codes at a tie may be rounded otherwise,
    assert error.max() < 1e-3  # which is seldom, and no more than a level
    assert not torch.equal(fine, fine.float().double())


@pytest.mark.parametrize("name", ROWS)
def test_complex_trains_as_pairs_of_real_numbers_do_or_is_refused(name):
    if name not in OF_COMPLEX:
        with pytest.raises(ValueError, match=r"weight': complex64 is not supported by \w+, which"):
            train(name, torch.complex64)
        return
    ours, spread = train(name, torch.complex64)
    pairs, expected_spread = train(name, torch.complex64, twin=True)
    torch.testing.assert_close(ours, pairs, rtol=0, atol=1e-6)
    assert spread == pytest.approx(expected_spread, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "dtype", "message"),
    [
        (AllReduce(wire="bf16"), torch.complex64, "complex64 is not supported by AllReduce,"),
        (ByteGrad(), torch.complex128, "complex128 is not supported by MinMaxUInt8, which takes"),
        (
            LocalSGD(outer=Nesterov(), compressor=SignScale(), error_feedback=True),
            torch.complex64,
            "complex64 is not supported by SignScale",
        ),
        (PowerSGD(), torch.complex64, "keep its real and imaginary parts as real parameters"),
        (AllReduce(), torch.float8_e4m3fn, "float8_e4m3fn is not supported by AllReduce"),
    ],
)
def test_what_is_refused_is_said_with_a_remedy(algorithm, dtype, message):
    with pytest.raises(ValueError, match=message):
        algorithm.check_parameter(nn.Parameter(torch.zeros(3, dtype=dtype)))


def test_complex_buffers_are_averaged():
    model = nn.Module()
    model.register_buffer("moving", torch.tensor([[1 + 2j, 3], [5, 7 - 4j]]))
    make_alike_(list(model.buffers()), StackedCommunicator(2))
    assert torch.equal(model.moving, torch.tensor([[3 + 1j, 5 - 2j]]).expand(2, 2))


def share_lost(algorithm: Algorithm, dtype: torch.dtype) -> float:
    """Of gradients of very different sizes, the same in every step: what has not arrived."""
    model = on_worker_axis(nn.Linear(32, 32, bias=False).to(dtype), StackedCommunicator(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(2))
    [parameter] = model.parameters()
    gradient = (2 * numbers(2, 32, 32, seed=1)).exp() * numbers(2, 32, 32, seed=2).sign()
    arrived = torch.zeros(32, 32, dtype=torch.float64)
    for _ in range(NUM_REPEATED):
        optimizer.zero_grad()
        (parameter * gradient.to(dtype)).sum().backward()
        optimizer.step()
        arrived += parameter.grad[0]
    engine.close()
    sent = NUM_REPEATED * gradient.to(dtype).double().mean(0)
    return ((arrived - sent).abs().sum() / sent.abs().sum()).item()


@pytest.mark.parametrize(
    "algorithm",
    [
        TopK(),
        PowerSGD(),
        CompressedAllReduce(compressor=SignScale(), error_feedback=True),
        ByteGrad(error_feedback=True),
    ],
    ids=["top_k", "power_sgd", "ef_signsgd", "byte_grad"],
)
def test_error_feedback_keeps_small_gradients_of_16_bits(algorithm):
    """A sum of 16 bits would not grow beyond some hundred of its summands, or overflow."""
    limit = 1.3 * share_lost(algorithm, torch.float32) + 1e-3
    for dtype in (torch.bfloat16, torch.float16):
        assert share_lost(algorithm, dtype) < limit


def test_a_gradient_that_top_k_sends_late_has_added_up():
    layer = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    model = on_worker_axis(layer, StackedCommunicator(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = Engine(model, optimizer, TopK(ratio=0.25), StackedCommunicator(1))
    for step in range(600):
        optimizer.zero_grad()
        x = torch.tensor([1.0, 0, 0, 0 if step == 599 else 5000])
        model(x.view(1, 4).bfloat16()).sum().backward()
        optimizer.step()
    gradient = engine.context.buckets[0].gradients[0, :4]
    assert gradient.tolist() == [600.0, 0, 0, 0]
    engine.close()
