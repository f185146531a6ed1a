from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce
from bagua_algos.algorithms.power_sgd import PowerSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel, StackedModel
from tests.bagua_algos.gloo import run_program
from tests.bagua_algos.gradient_oracle import (
    NUM_PARAMETERS,
    SHAPES,
    averages,
    distance_on_a_quadratic,
    given_gradients,
    oracle,
    train,
)
from tests.bagua_algos.recorder import Recorder
from tests.bagua_algos.torch_power_sgd import DTYPE, RANK, START_STEP, first_q


def gram_schmidt(p):
    columns = []
    for column in p.unbind(1):
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


class Oracle:
    """Algorithms 1 and 2 of the paper, one parameter after the other."""

    def __init__(self, rank, rate=2.0, warmup_steps=0):
        self.rank, self.rate, self.warmup_steps = rank, rate, warmup_steps
        self.error = 0.0
        generator = torch.Generator().manual_seed(0)
        self.q = {
            i: torch.randn(m, min(n, m, rank), generator=generator)
            for i, (n, m) in self.compressed().items()
        }

    def compressed(self):
        matrices = {i: shape for i, shape in enumerate(SHAPES) if len(shape) == 2}
        return {
            i: (n, m)
            for i, (n, m) in matrices.items()
            if (n + m) * min(n, m, self.rank) * self.rate < n * m
        }

    def __call__(self, step, gradients):
        if step < self.warmup_steps:
            return gradients.mean(0)
        corrected, decoded = gradients + self.error, []
        for i, part in enumerate(corrected.split([shape.numel() for shape in SHAPES], 1)):
            if i in self.q:
                matrices = part.view(len(part), *SHAPES[i])
                p = gram_schmidt((matrices @ self.q[i]).mean(0))
                self.q[i] = (matrices.mT @ p).mean(0)
                decoded.append((p @ self.q[i].T).flatten())
            else:
                decoded.append(part.mean(0))
        self.error = corrected - torch.cat(decoded)
        return torch.cat(decoded)


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_power_sgd_equals_its_oracle(world_size, rank):
    ours = train(world_size, PowerSGD(rank=rank, warmup_steps=3))
    expected = oracle(world_size, Oracle(rank, warmup_steps=3))
    torch.testing.assert_close(ours[0], expected, rtol=0, atol=1e-4)
    assert torch.equal(ours, ours[:1].expand_as(ours))


@pytest.mark.timeout(120)
def test_torchs_hook_computes_the_same(tmp_path):
    """Two gloo workers under DistributedDataParallel with powerSGD_hook, from the same first Qs."""
    theirs = run_program("tests.bagua_algos.torch_power_sgd", tmp_path, 2, strict=False)

    def with_the_same_q(context):
        for q in context.state[0].q:
            q.copy_(first_q(q.shape[1]))

    algorithm = PowerSGD(rank=RANK, warmup_steps=START_STEP)
    ours = train(2, algorithm, prepare=with_the_same_q, dtype=DTYPE)[0]
    torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-10)
    apart = (ours - train(2, AllReduce(), dtype=DTYPE)[0]).abs().max()
    assert apart > 0.01, "nothing was compressed"


@pytest.mark.parametrize("error_feedback", [True, False])
def test_full_rank_leaves_nothing_out(error_feedback):
    with nullcontext() if error_feedback else pytest.warns(UserWarning, match="for good"):
        algorithm = PowerSGD(rank=100, min_compression_rate=0, error_feedback=error_feedback)
    torch.testing.assert_close(train(4, algorithm), train(4, AllReduce()), rtol=0, atol=1e-4)


def test_where_nothing_pays_it_is_all_reduce():
    algorithm = PowerSGD(rank=2, min_compression_rate=1e9)
    torch.testing.assert_close(train(3, algorithm), train(3, AllReduce()), rtol=0, atol=1e-5)


def test_buckets_do_not_matter_to_the_rule():
    """Another split into buckets draws the same Qs, in the same order."""
    many = train(4, PowerSGD(), bucket_bytes=1000)
    torch.testing.assert_close(many, train(4, PowerSGD()), rtol=0, atol=1e-4)


def test_two_messages_a_bucket_as_long_as_the_factors():
    recorder = Recorder()
    train(4, PowerSGD(rank=2), num_steps=1, observer=recorder)
    compressed = Oracle(2).compressed()
    left = sum(2 * n for n, _ in compressed.values())
    right = sum(2 * m for _, m in compressed.values())
    others = NUM_PARAMETERS - sum(n * m for n, m in compressed.values())
    assert len(compressed) == 3
    assert recorder.messages == [
        ("all_reduce_mean", 4 * (left + others)),
        ("all_reduce_mean", 4 * right),
    ]


def shapes_of_q(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = PowerSGD(rank=1, **options)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))
    engine.close()
    return [q.shape for factors in engine.context.state for q in factors.q]


@pytest.mark.parametrize("of_one", [nn.Identity(), nn.Conv2d(3, 1, 9)])
def test_a_stacked_model_of_one_worker_is_compressed_as_a_real_one(of_one):
    """Its parameters have a dimension in front that is no row."""

    def model():
        return nn.Sequential(nn.Linear(20, 30), of_one)

    assert shapes_of_q(StackedModel(model(), 1)) == shapes_of_q(SingleModel(model()))
    assert len(shapes_of_q(SingleModel(model()))) == 1 + isinstance(of_one, nn.Conv2d)
    whatever_it_costs = {"min_compression_rate": 0.1}
    of_stacked = shapes_of_q(StackedModel(model(), 1), **whatever_it_costs)
    assert of_stacked == shapes_of_q(SingleModel(model()), **whatever_it_costs)


def test_what_just_reaches_the_rate_is_not_compressed():
    """Of 4 x 4 elements, two factors of 4 are half."""
    assert shapes_of_q(nn.Linear(4, 4), min_compression_rate=2.0) == []
    assert shapes_of_q(nn.Linear(4, 4), min_compression_rate=1.99) == [(1, 4, 1)]


def test_a_gradient_of_zeros_is_no_division_by_zero_and_does_not_stay():
    """Q becomes zero with the gradient, and must come to life again with it."""
    algorithm, world_size = PowerSGD(rank=1), 2
    calm = train(world_size, algorithm, prepare=lambda c: [q.zero_() for q in c.state[0].q])
    assert calm.isfinite().all()
    assert (calm - train(world_size, AllReduce())).abs().max() < 0.5
    assert not torch.equal(calm, train(world_size, algorithm, num_steps=0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_overflows_is_forgotten_after_its_step(value):
    """What follows is as if training had begun there."""
    gradients = given_gradients(2, 4)
    gradients[0, 0] = value
    means = averages(PowerSGD(), gradients)
    assert not means[0].isfinite().any()
    assert torch.equal(means[1:], averages(PowerSGD(), gradients[1:]))


def test_a_product_that_overflows_in_one_column_leaves_the_factor_as_it_was():
    """The gradient itself is finite, and so is its first product."""
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = PowerSGD(rank=1, min_compression_rate=0.1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))
    [q] = engine.context.state[0].q
    q.fill_(0.1)
    model(torch.tensor([[3e38] + [1.0] * 7])).sum().backward()
    assert model.weight.grad.isnan().any() or model.weight.grad.isinf().any()
    assert q.eq(0.1).all()
    engine.close()


def test_nothing_is_left_out_of_what_travels_uncompressed():
    """Workers' differences from the mean would add up there, and a narrow type could not hold the
    mean beside them.
    """
    contexts = []
    train(2, PowerSGD(), prepare=contexts.append, num_steps=3)
    [bucket], [state] = contexts[0].buckets, contexts[0].state
    for i, residual in enumerate(state.residual.split([shape.numel() for shape in SHAPES], 1)):
        assert bool(residual.any()) == (i in Oracle(2).compressed()), i
    assert bucket.numel == state.residual.shape[1]


@pytest.mark.parametrize("rank", [1, 4])
def test_a_quadratic_converges(rank):
    assert distance_on_a_quadratic(PowerSGD(rank=rank), lr=0.05, num_steps=400) < 1e-4


def test_the_seed_draws_the_first_q():
    first = train(2, PowerSGD(seed=1), num_steps=2)
    assert torch.equal(first, train(2, PowerSGD(seed=1), num_steps=2))
    assert not torch.equal(first, train(2, PowerSGD(seed=2), num_steps=2))


@pytest.mark.parametrize(
    ("option", "value"), [("rank", 0), ("min_compression_rate", -1.0), ("warmup_steps", -1)]
)
def test_numbers_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"^{option} must be .*at least .*, got {value}$"):
        PowerSGD(**{option: value})
