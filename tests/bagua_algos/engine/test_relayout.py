"""Parameters laid out anew between steps, with all that lies beside them."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bagua_algos
from bagua_algos import Algorithm
from bagua_algos.autotune.make_engine import make_engine
from bagua_algos.checkpoint import tensors_in
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.primitives import CHUNK_ALIGNMENT
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.bucket import Move, build_buckets, lay_out, phases_of
from bagua_algos.engine.engine import Engine
from bagua_algos.fused.fuse import is_fused
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.cases import NODES, batch, losses, make_model
from tests.bagua_algos.engine.test_bucket import SHAPES, parameters_of
from tests.bagua_algos.fused.settings import assert_same
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

NUM_STEPS = 12
MOVABLE = [name for name, make in ROWS.items() if not make().depends_on_buckets]


def test_what_does_not_depend_on_buckets_says_so():
    """Nothing else would lay these out anew."""
    assert {"all_reduce", "decentralized", "local_sgd", "power_sgd", "sgp"} <= set(MOVABLE)


def groups_of(parameters, seed):
    """Shuffled, and cut into parts of any size."""
    numbers = random.Random(seed)
    own = [p for p in parameters if p.requires_grad]
    numbers.shuffle(own)
    inner = numbers.sample(range(1, len(own)), numbers.randrange(len(own)))
    cuts = [*sorted(inner), len(own)]
    return [tuple(own[a:b]) for a, b in zip([0, *cuts], cuts, strict=False) if a < b]


def train(name: str, *, moves: bool) -> tuple[torch.optim.Optimizer, Engine]:
    """One of 4 workers, alone."""
    model = make_model()
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    workers = LoopbackCommunicator(4, nodes=NODES[4])
    engine = make_engine(model, optimizer, ROWS[name](), workers, bucket_bytes=300)
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, 0)
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        losses(model(x_b)[None], y_b[None]).backward()
        optimizer.step()
        if moves:
            before = [p.grad.clone() for p in model.parameters()]
            engine.relayout(groups_of(model.parameters(), step))
            assert all(
                torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True)
            )
    return optimizer, engine


@pytest.mark.parametrize("name", MOVABLE)
def test_every_algorithm_that_says_so_does_not_depend_on_buckets(name):
    moved, engine = train(name, moves=True)
    plain, other = train(name, moves=False)
    assert is_fused(moved) and is_fused(plain)
    assert_same(moved, plain)
    for own in (engine, other):
        own.pause()
        own.close()


@given(shapes=SHAPES, seed=st.integers(0, 1000), world_size=st.integers(1, 5))
def test_every_element_moves_once_and_keeps_its_alignment(shapes, seed, world_size):
    parameters = parameters_of(shapes)
    values = [p.detach().clone() for p in parameters]
    old = build_buckets(parameters, num_held=1, world_size=world_size, bucket_bytes=100)
    beside = [torch.randn_like(bucket.weights) for bucket in old]
    of = {
        p: view.clone()
        for bucket, flat in zip(old, beside, strict=True)
        for p, view in zip(bucket.parameters, bucket.views(flat), strict=True)
    }
    groups = groups_of(parameters, seed) if len(parameters) > 1 else [tuple(parameters)]
    new = lay_out(groups, phases_of(old), world_size=world_size)
    for bucket in new:
        bucket.adopt_weights()
    assert phases_of(new) == phases_of(old)
    assert sum(len(bucket.parameters) for bucket in new) == len(parameters)
    for p, value in zip(parameters, values, strict=True):
        assert torch.equal(p, value)
    for bucket, flat in zip(new, Move(old, new).carry(beside), strict=True):
        taken = 0
        for p, start, view in zip(
            bucket.parameters, bucket.starts, bucket.views(flat), strict=True
        ):
            assert taken <= start < taken + CHUNK_ALIGNMENT
            assert flat[:, taken:start].eq(0).all() and torch.equal(view, of[p])
            taken = start + p.numel()
        assert taken == bucket.numel and flat[:, taken:].eq(0).all()
        assert bucket.weights.shape == flat.shape and flat.shape[1] % world_size == 0


def test_a_product_with_a_vector_is_rounded_as_before():
    """torch's kernel for it looks at the address of the matrix."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(64, 10), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = LoopbackCommunicator(2)
    engine = make_engine(model, optimizer, bagua_algos.AllReduce(), workers)
    x = torch.randn(1, 64)
    before = model[1](x)
    for seed in range(20):
        engine.relayout(groups_of(model.parameters(), seed))
        assert torch.equal(model[1](x), before)
    engine.close()


@pytest.mark.parametrize("name", ["slowmo", "power_sgd", "sgp_overlapped"])
def test_a_state_goes_on_in_other_buckets(name):
    _, engine = train(name, moves=True)
    engine.pause()
    state = engine.state_dict()
    model = make_model()
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    workers = LoopbackCommunicator(4, nodes=NODES[4])
    other = make_engine(model, optimizer, ROWS[name](), workers, bucket_bytes=300)
    model.load_state_dict(engine.model.state_dict())
    other.load_state_dict(state)
    parameters = list(model.parameters())
    other.relayout([tuple(parameters[number] for number, _ in g) for g in state["layout"]])
    theirs, ours = engine.state_dict()["state"], other.state_dict()["state"]
    tensors = list(tensors_in(theirs))
    for own, expected in zip(tensors_in(ours), tensors, strict=True):
        assert torch.equal(own, expected)
    for own in (engine, other):
        own.close()


@dataclass(frozen=True, kw_only=True)
class Keeping(Algorithm):
    """Keeps a number for each weight."""

    workers_agree = False
    depends_on_buckets = False

    def init(self, context):
        return [torch.zeros_like(bucket.weights) for bucket in context.buckets]

    def move_state(self, context, move):
        return move.carry(context.state)


class ByBucket(Keeping):
    """The numbers of a bucket belong together."""

    depends_on_buckets = True


def keeping(bucket_bytes=1, *, sizes=(3, 4, 5), num_workers=1, algorithm=Keeping):
    """An engine whose numbers are 0, 1, 2 ... in the order of the model's weights."""
    layers = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))
    model = layers if num_workers == 1 else StackedModel(layers, num_workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = StackedCommunicator(num_workers)
    engine = Engine(model, optimizer, algorithm(), workers, bucket_bytes=bucket_bytes)
    start = 0
    for places in reversed(list(numbers_of(engine))):
        places.copy_(torch.arange(start, start + places.numel()).view(places.shape))
        start += places.numel()
    return engine


def numbers_of(engine):
    """Those that the algorithm keeps, of the last weight first."""
    for bucket, flat_wn in zip(engine.context.buckets, engine.context.state, strict=True):
        yield from bucket.views(flat_wn)


ALL_IN_ONE = 1 << 20


def test_a_state_of_other_buckets_is_laid_out_as_the_buckets_are_here():
    state = keeping().state_dict()
    other = keeping(ALL_IN_ONE)
    for numbers in other.context.state:
        numbers.zero_()
    other.load_state_dict(state)
    first, last = reversed(list(numbers_of(other)))
    assert first.flatten().tolist() == [*range(12)] and last.flatten().tolist() == [*range(12, 32)]


def test_a_state_that_says_nothing_of_its_layout_is_one_of_the_same():
    """Those of earlier versions."""
    state = keeping().state_dict()
    del state["layout"]
    keeping().load_state_dict(state)
    with pytest.raises(ValueError, match="this state is of another layout of buckets: "):
        keeping(ALL_IN_ONE).load_state_dict(state)


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        ({"sizes": (3, 4, 6)}, {}),  # another model with as many weights
        ({"sizes": (3, 4, 5, 6)}, {}),
        ({"num_workers": 2}, {"num_workers": 2}),  # weights of several workers lie apart
        ({"algorithm": ByBucket}, {"algorithm": ByBucket}),
    ],
)
def test_a_state_of_other_buckets_that_cannot_be_moved_is_refused(saved, here):
    state = keeping(**saved).state_dict()
    with pytest.raises(ValueError, match="this state is of another layout of buckets: "):
        keeping(ALL_IN_ONE, **here).load_state_dict(state)
