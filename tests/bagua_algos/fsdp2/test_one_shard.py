"""A sharded model as one process finds it, which is the only one of a replica."""

import math
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn

import bagua_algos
from bagua_algos import Algorithm, AllReduce, Decentralized, LocalSGD
from bagua_algos.distribute import _engine


class Another:
    """The mean with another replica, all of whose weights are greater by 2; those of padding are
    zero everywhere.
    """

    ranks = (0,)

    def all_reduce_mean_(self, x: Tensor) -> None:
        if x.dtype != torch.float64:  # squared distances, which are ours
            x.add_(x != 0)

    def broadcast_(self, x: Tensor, source: int = 0) -> None:
        x.add_(1)


class Keeping(Algorithm):
    """Keeps the optimizer that algorithms see."""

    def init(self, context):
        Keeping.optimizer = context.optimizer


class Slow(Algorithm):
    """Begins with a bucket after the rest of backward, and doubles its gradients."""

    def on_bucket_ready(self, context, bucket):
        threading.Event().wait(0.05)
        bucket.gradients.mul_(2)


class Halving(Algorithm):
    """Halves the weights after each step; what it does to them before stays with it."""

    def on_forward(self, context):
        for bucket in context.buckets:
            bucket.weights.zero_()

    def on_step_end(self, context):
        for bucket in context.buckets:
            bucket.weights.mul_(0.5)


def distribute(sharded, algorithm: Algorithm, **options):
    model, workers = sharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    return bagua_algos.distribute(model, optimizer, algorithm, workers)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def weights_of(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor().detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2)])
def test_a_replica_that_differs_is_averaged_for_a_while_and_told_of_where_none_should(
    sharded, algorithm
):
    model, _ = distribute(sharded, algorithm)
    own = weights_of(model)
    telling = warnings.catch_warnings(record=True, action="always")
    with telling as said, _engine(model).consensus(Another()) as spread:
        within = weights_of(model)
    norm = math.sqrt(sum((x + 1).square().sum().item() for x in own))
    assert spread == pytest.approx(math.sqrt(sum(x.numel() for x in own)) / norm)
    assert all(map(torch.equal, within, [x + 1 for x in own]))
    assert all(map(torch.equal, weights_of(model), own))
    sentences = [str(warning.message) for warning in said]
    assert len(sentences) == algorithm.workers_agree
    assert all("AllReduce keeps them equal" in sentence for sentence in sentences)
    bagua_algos.release(model)


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2)])
def test_replicas_that_are_equal_have_no_spread(sharded, algorithm):
    model, _ = distribute(sharded, algorithm)
    own = weights_of(model)
    with bagua_algos.consensus(model) as spread:
        assert spread == 0.0
        assert all(map(torch.equal, weights_of(model), own))
    bagua_algos.release(model)


def test_a_model_that_has_been_tried_before_is_distributed_like_any_other(sharded):
    """FSDP2 leaves whole weights in the root's place after a forward pass."""
    model, workers = sharded
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3))
    bagua_algos.distribute(model, optimizer, AllReduce(), workers)
    before = weights_of(model)
    backward(model)
    optimizer.step()
    assert not all(map(torch.equal, weights_of(model), before))
    bagua_algos.release(model)


def test_gradients_within_no_sync_are_not_reduced_yet(sharded):
    model, _ = distribute(sharded, AllReduce())
    with bagua_algos.no_sync(model):
        backward(model)
    _engine(model).pause()
    assert all(p.grad is None for p in model.parameters())
    backward(model)
    assert all(p.grad.full_tensor().eq(4).all() for p in model.parameters())
    bagua_algos.release(model)


def test_a_pass_ends_when_its_gradients_have_travelled(sharded):
    model, _ = distribute(sharded, Slow())
    backward(model)
    assert all(p.grad.full_tensor().eq(4).all() for p in model.parameters())
    bagua_algos.release(model)


def test_shards_take_what_an_algorithm_makes_of_them_between_steps_alone(sharded):
    model, optimizer = distribute(sharded, Halving())
    for _ in range(2):
        before = weights_of(model)
        backward(model)
        optimizer.step()
        after = [(x - 0.1 * 2) / 2 for x in before]
        torch.testing.assert_close(weights_of(model), after)
        optimizer.zero_grad()
    bagua_algos.release(model)


def test_an_algorithm_sees_the_state_of_each_shard(sharding):
    model = sharding.shard(nn.Linear(3, 4))
    model, optimizer = distribute((model, sharding.workers), Keeping(), momentum=0.9)
    own = Keeping.optimizer
    assert len(own.state) == 0 and len(own.param_groups) == 1
    backward(model)
    optimizer.step()
    assert len(own.state) == len(list(own.state)) == 2
    shards = own.param_groups[0]["params"]
    assert [shard.shape for shard in shards] == [(4, 3), (4,)]
    for shard in shards:
        assert own.state[shard]["momentum_buffer"].equal(shard.grad)
    assert [group["lr"] for group in own.param_groups[:1]] == [0.1]
    bagua_algos.release(model)


@pytest.mark.parametrize("num_forwards", [1, 2])
def test_another_pass_through_a_graph_of_before_an_average_is_refused(sharded, num_forwards):
    model, optimizer = distribute(sharded, Decentralized())
    for _ in range(2):
        backward(model)
        optimizer.step()
    outputs = [model(torch.ones(2, 3, requires_grad=True)) for _ in range(num_forwards)]
    outputs[0].sum().backward(retain_graph=num_forwards == 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[-1].square().sum().backward()


def test_a_unit_that_was_frozen_and_trains_alone_is_refused(sharding):
    """No backward pass tells of it: workers hear of the other unit's gradients only."""
    model = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 4))
    for unit in (*model, model):
        sharding.shard(unit)
    _, optimizer = distribute((model, sharding.workers), AllReduce())
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    model[0].requires_grad_(True)
    model[1].requires_grad_(False)
    backward(model)
    with pytest.raises(ValueError, match=r"^'0.weight' .* frozen or not there when the model"):
        optimizer.step()
    bagua_algos.release(model)
