import gc
import threading
import weakref
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import bagua_algos
from bagua_algos import (
    Algorithm,
    AllReduce,
    ByteGrad,
    CommunicationError,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
)
from bagua_algos.checkpoint import tensors_in
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import StackedModel

ONE_BYTE = 1  # every parameter becomes a bucket of its own


def engine_of(model, algorithm, world_size=1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    communicator = StackedCommunicator(world_size)
    return Engine(model, optimizer, algorithm, communicator, **options), optimizer


def layers(*sizes):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))


@dataclass(frozen=True, kw_only=True)
class Recording(Algorithm):
    moments: list[str] = field(default_factory=list)

    def on_forward(self, context):
        self.moments.append("forward")

    def on_bucket_ready(self, context, bucket):
        self.moments.append(f"bucket {bucket.index}")

    def on_backward_end(self, context):
        self.moments.append("backward end")

    def on_step_end(self, context):
        self.moments.append(f"step {context.step} end")


def test_the_moments_of_a_step_come_in_order():
    model, algorithm = layers(3, 4, 5), Recording()
    _, optimizer = engine_of(model, algorithm, bucket_bytes=ONE_BYTE)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    step = ["forward", "bucket 0", "bucket 1", "backward end"]
    assert algorithm.moments == [*step, "step 0 end", *step, "step 1 end"]


class SGDTwice(torch.optim.SGD):
    """Torch runs the hooks for its own step and for SGD's, where SGD's has them: of any SGD."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("has_closure", [False, True])
def test_a_step_within_a_step_is_no_moment(has_closure):
    model, algorithm = layers(3, 4), Recording()
    torch.optim.SGD(layers(1, 1).parameters(), lr=1.0)
    optimizer = SGDTwice(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))

    def backward():
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    for _ in range(2):
        if not has_closure:
            backward()
        optimizer.step(backward if has_closure else None)
    step = ["forward", "bucket 0", "backward end"]
    assert algorithm.moments == [*step, "step 0 end", *step, "step 1 end"]
    assert engine.context.step == 2


def test_a_forward_without_training_is_no_moment():
    model, algorithm = layers(3, 4), Recording()
    engine_of(model, algorithm)
    with torch.no_grad():
        model(torch.ones(2, 3))
    model.eval()
    model(torch.ones(2, 3))
    assert algorithm.moments == []


def test_a_bucket_travels_while_the_rest_of_backward_computes():
    """The first bucket's journey ends only after backward has reached the first layer."""
    reached = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Waiting(Algorithm):
        def on_bucket_ready(self, context, bucket):
            if bucket.index == 0:
                assert reached.wait(20), "backward stood still while the bucket travelled"

    model = layers(3, 4, 5)
    engine_of(model, Waiting(), bucket_bytes=ONE_BYTE)
    model[0].register_full_backward_hook(lambda *_: reached.set())
    model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert reached.is_set()


def test_buckets_travel_in_the_same_order_whatever_order_gradients_come_in():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x))

    algorithm = Recording()
    model = Swapped()
    engine_of(model, algorithm, bucket_bytes=ONE_BYTE)
    model(torch.ones(2, 4)).sum().backward()
    buckets = [moment for moment in algorithm.moments if "bucket" in moment]
    assert buckets == [f"bucket {index}" for index in range(4)]


def test_gradients_are_final_when_backward_returns():
    @dataclass(frozen=True, kw_only=True)
    class Hundredfold(Algorithm):
        def on_bucket_ready(self, context, bucket):
            bucket.gradients.mul_(100)

    plain, model = layers(3, 4, 5), layers(3, 4, 5)
    engine_of(model, Hundredfold(), bucket_bytes=ONE_BYTE)
    for m in (plain, model):
        m(torch.ones(2, 3)).sum().backward()
    for expected, parameter in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 100 * expected.grad)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_do_not_pile_up_over_steps(set_to_none):
    plain, model = layers(3, 4), layers(3, 4)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    _, optimizer = engine_of(model, AllReduce())
    for step in range(3):
        for m, o in ((plain, plain_optimizer), (model, optimizer)):
            o.zero_grad(set_to_none=set_to_none)
            m(torch.full((2, 3), step + 1.0)).square().sum().backward()
            o.step()
    for expected, parameter in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


def test_an_error_on_the_lane_ends_backward_and_what_follows_does_not_run():
    @dataclass(frozen=True, kw_only=True)
    class Failing(Recording):
        def on_bucket_ready(self, context, bucket):
            super().on_bucket_ready(context, bucket)
            raise CommunicationError("worker 1 is gone")

    model, algorithm = layers(3, 4, 5), Failing()
    engine_of(model, algorithm, bucket_bytes=ONE_BYTE)
    with pytest.raises(CommunicationError, match="worker 1 is gone"):
        model(torch.ones(2, 3)).sum().backward()
    assert algorithm.moments == ["forward", "bucket 0"]
    with pytest.raises(CommunicationError, match="not tried after: worker 1 is gone"):
        model(torch.ones(2, 3)).sum().backward()
    assert algorithm.moments == ["forward", "bucket 0"]


def test_a_silent_bucket_is_named_after_its_time_is_over():
    release = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Silent(Algorithm):
        def on_bucket_ready(self, context, bucket):
            release.wait(20)

    model = layers(3, 4)
    engine_of(model, Silent(), timeout_s=0.2)
    with pytest.raises(CommunicationError, match=r"bucket 0 of Silent .* within 0\.2 s"):
        model(torch.ones(2, 3)).sum().backward()
    release.set()


def test_kernels_are_loaded_before_the_first_step():
    loaded = []

    @dataclass(frozen=True, kw_only=True)
    class Loading(MinMaxUInt8):
        def load(self, device):
            loaded.append(device)

    model = layers(3, 4)
    engine_of(model, CompressedAllReduce(compressor=Loading()))
    assert loaded == [torch.device("cpu")]


def test_workers_start_from_the_weights_of_worker_0():
    model = StackedModel(layers(3, 4), 3)
    weights = model.module[0].weight
    with torch.no_grad():
        weights.copy_(torch.arange(3.0)[:, None, None].expand_as(weights) + 5)
    engine_of(model, AllReduce(), world_size=3)
    assert weights.eq(5).all()


def test_consensus_is_the_mean_of_workers_that_disagree_and_passes():
    @dataclass(frozen=True, kw_only=True)
    class Local(Algorithm):
        workers_agree = False

    model = StackedModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 4)
    engine, _ = engine_of(model, Local(), world_size=4)
    weights, running_mean = model.module[0].weight, model.module[1].running_mean
    ranks = torch.arange(4.0)
    with torch.no_grad():
        weights.copy_(ranks[:, None, None].expand_as(weights))
        running_mean.copy_(ranks[:, None].expand_as(running_mean))
    with engine.consensus():
        assert weights.eq(1.5).all()
        assert running_mean.eq(1.5).all()
    assert torch.equal(weights[:, 0, 0], ranks)


def test_after_close_the_model_is_plain_again():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    engine.close()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert algorithm.moments == []


def test_exposed_communication_is_what_the_caller_waited():
    @dataclass(frozen=True, kw_only=True)
    class Slow(Algorithm):
        def on_bucket_ready(self, context, bucket):
            threading.Event().wait(0.05)

    model = layers(3, 4)
    engine, _ = engine_of(model, Slow())
    assert engine.exposed_communication_s == 0
    model(torch.ones(2, 3)).sum().backward()
    assert 0.04 < engine.exposed_communication_s < 5


def test_distribute_returns_the_same_objects_and_refuses_to_do_so_twice():
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    communicator = StackedCommunicator(1)
    same = bagua_algos.distribute(model, optimizer, AllReduce(), communicator)
    assert same == (model, optimizer)
    assert bagua_algos.is_distributed(model)
    with pytest.raises(ValueError, match="distributed already"):
        bagua_algos.distribute(model, optimizer, AllReduce(), communicator)
    bagua_algos.release(model)
    assert not bagua_algos.is_distributed(model)
    with pytest.raises(ValueError, match="not distributed"), bagua_algos.consensus(model):
        pass


def test_without_a_process_group_distribute_says_what_to_do():
    model = layers(3, 4)
    with pytest.raises(ValueError, match="init_process_group"):
        bagua_algos.distribute(model, torch.optim.SGD(model.parameters()), AllReduce())


def test_a_state_that_no_checkpoint_could_give_back_is_refused():
    """A class of its own, at once; one that is put in later, when it is saved."""

    @dataclass
    class Forgotten:
        sums: torch.Tensor

    @dataclass(frozen=True, kw_only=True)
    class Keeping(Algorithm):
        state: object

        def init(self, context):
            return self.state

    sentence = r"Forgotten is part of an algorithm's state.*@bagua_algos\.checkpoint\.kept"
    held = [{"a": (1, Forgotten(torch.zeros(1)))}]
    with pytest.raises(ValueError, match=sentence):
        engine_of(layers(3, 4), Keeping(state=held))
    engine, _ = engine_of(layers(3, 4), Keeping(state={"sums": torch.zeros(1), "count": 1}))
    engine.state_dict()
    engine.context.state["late"] = Forgotten(torch.zeros(1))
    with pytest.raises(ValueError, match=sentence):
        engine.state_dict()
    engine.close()


def alone(algorithm, world_size):
    """Worker 0 of so many, after a step."""
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, algorithm, LoopbackCommunicator(world_size))
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return engine


@pytest.mark.parametrize("algorithm", [Decentralized(), LocalSGD()])
def test_a_state_without_tensors_of_workers_that_differ_is_of_one_worker(algorithm):
    """Its model is in no other worker's file."""
    engines = [alone(algorithm, world_size) for world_size in (4, 3, 4)]
    state = engines[0].state_dict()
    assert next(tensors_in(state["state"]), None) is None
    with pytest.raises(ValueError, match="of another number of workers: 4, and here it is 3"):
        engines[1].load_state_dict(state)
    of_another = state | {"of": state["of"] | {"rank": [1]}}
    with pytest.raises(ValueError, match=r"of another rank: \[1\], and here it is \[0\]"):
        engines[2].load_state_dict(of_another)
    engines[2].load_state_dict(state)
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), ByteGrad()])
def test_a_state_without_tensors_of_workers_that_agree_is_anybodys(algorithm):
    engines = [alone(algorithm, world_size) for world_size in (4, 3)]
    engines[1].load_state_dict(engines[0].state_dict())
    assert engines[1].context.step == 1
    for engine in engines:
        engine.close()


def test_an_engine_may_be_collected_while_any_optimizer_steps():
    """The garbage collector may come at any time, also between two hooks of torch."""

    def collect(*_) -> None:
        gc.collect()

    handle = register_optimizer_step_pre_hook(collect)
    gc.disable()  # at no other moment here
    try:
        engine, optimizer = engine_of(layers(3, 4), AllReduce())
        alive = weakref.ref(engine)
        del engine, optimizer
        model = layers(3, 4)
        model(torch.ones(2, 3)).sum().backward()
        assert alive() is not None
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    finally:
        gc.enable()
        handle.remove()
    assert alive() is None


@pytest.mark.parametrize("algorithm", [AllReduce(), Decentralized(), LocalSGD(interval=2)])
def test_a_closed_engine_and_its_buckets_go_when_nobody_has_them(algorithm):
    """Python's collector comes late where little but tensors is made."""
    gc.collect()
    gc.disable()
    try:
        model = layers(3, 4)
        engine, optimizer = engine_of(model, algorithm)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        alive = [weakref.ref(engine), *map(weakref.ref, engine.context.buckets)]
        engine.close()
        del engine, optimizer, model
        assert [one() for one in alive] == [None] * len(alive)
    finally:
        gc.enable()
