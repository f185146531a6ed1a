"""What may be tuned, and how an engine gets its tuner."""

import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce, LocalSGD
from bagua_algos.autotune import make_engine as module
from bagua_algos.autotune.make_engine import make_engine, tuning_of
from bagua_algos.autotune.order import Order, OrderTrial
from bagua_algos.autotune.scope import Scope, scope
from bagua_algos.autotune.tuner import Tuner
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.autotune.stand_ins import Engine, Workers

FLOAT32 = {torch.float32}
ALL = Scope(tunes_lanes=True, tunes_transport=True, tunes_buckets=True, left_out=())
CUDA = torch.device("cuda")


def of(workers: Any, dtypes: set[torch.dtype] | None = None, **attributes: Any) -> Scope:
    usual = {"depends_on_timing": False, "uses_background": False}
    usual |= {"depends_on_buckets": False, "steps_per_round": 1}
    algorithm: Any = SimpleNamespace(**(usual | attributes))
    return scope(algorithm, workers, FLOAT32 if dtypes is None else dtypes)


@pytest.mark.parametrize(
    ("workers", "attributes"),
    [
        (Workers(2), {}),
        (Workers(3), {"steps_per_round": 26}),  # seven windows of 28 steps
        (Workers(2, device=CUDA), {}),
        (Workers(3, device=CUDA), {"dtypes": set()}),  # nothing is trained
        (Workers(3, device=torch.device("cpu")), {"dtypes": {torch.float64, torch.float32}}),
    ],
)
def test_all_is_tuned(workers, attributes):
    assert of(workers, **attributes) == ALL


@pytest.mark.parametrize(
    ("workers", "attributes", "said"),
    [
        (Workers(1), {}, "a worker alone"),
        (Workers(3), {"depends_on_timing": True}, "depend on when averages arrive"),
        (Workers(3), {"uses_background": True}, "depend on when averages arrive"),
        (Workers(3), {"steps_per_round": 27}, "repeats its work after 27 steps"),
        (Workers(3, device=CUDA), {}, "NCCL adds up in an order that depends on buckets"),
    ],
)
def test_nothing_is_tuned(workers, attributes, said):
    own = of(workers, **attributes)
    assert not (own.tunes_lanes or own.tunes_transport or own.tunes_buckets)
    [sentence] = own.left_out
    assert said in sentence


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"depends_on_buckets": True}, "depends on buckets"),
        ({"dtypes": {torch.float32, torch.float16}}, "16-bit numbers"),
    ],
)
def test_buckets_alone_stay(attributes, said):
    own = of(Workers(3), **attributes)
    assert own.tunes_lanes and own.tunes_transport and not own.tunes_buckets
    [sentence] = own.left_out
    assert said in sentence


def test_beside_a_faster_pattern_lanes_alone_are_tuned():
    trial = OrderTrial(given_s=0.0015, fixed_s=0.003, smaller_s=0.00225, num_turns=2)
    own = ALL.by(Order(is_fixed=False, trial=trial))
    assert own.tunes_lanes and not own.tunes_transport and not own.tunes_buckets
    [sentence] = own.left_out
    assert "1.5 ms against 2.25 by sums in a fixed order" in sentence
    assert ALL.by(Order(is_fixed=True, trial=trial)) is ALL
    assert ALL.by(Order(is_fixed=False)) is ALL


@pytest.fixture
def made(monkeypatch):
    """What engines were made of; those are stand-ins."""
    calls = []

    def make(*arguments, **options):
        calls.append(options)
        engine: Any = Engine((4,), Workers(3))
        engine.close, engine.listener = Mock(), None
        return engine

    def choose(engine: Any, bucket_bytes: int | None) -> Order:
        calls[-1]["order of buckets of"] = bucket_bytes
        return Order(is_fixed=True)

    monkeypatch.setattr(module, "Engine", make)
    monkeypatch.setattr(module, "choose_order", choose)
    return calls


def engine_of(
    world_size: int, *, first_trains: bool = True, algorithm: Any = None, **options: Any
) -> Any:
    model = nn.Sequential(nn.Linear(2, 2).bfloat16().requires_grad_(first_trains), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = Mock(spec=ProcessGroupCommunicator)
    workers.world_size, workers.device = world_size, torch.device("cpu")
    return make_engine(model, optimizer, algorithm or AllReduce(), workers, **options)


def test_an_engine_has_a_tuner_where_it_is_asked_for(made):
    plain, tuned = engine_of(3), engine_of(3, autotune=True, first_trains=False)
    assert plain.listener is None and tuning_of(plain) is None
    assert isinstance(tuned.listener, Tuner)
    tuning = tuning_of(tuned)
    assert tuning is not None and tuning.order == Order(is_fixed=True) and not tuning.is_done
    assert [options["may_move"] for options in made] == [False, True]


def test_parameters_move_where_buckets_are_tuned_alone(made):
    engine_of(3, autotune=True, bucket_bytes=64)  # its first layer has 16 bits
    engine_of(3, autotune=True, bucket_bytes=64, first_trains=False)
    found = [(options["may_move"], options["order of buckets of"]) for options in made]
    assert found == [(False, None), (True, 64)]


def test_whoever_asks_for_what_cannot_be_tuned_is_warned(made):
    with pytest.warns(UserWarning, match="^autotune: LocalSGD repeats its work") as warned:
        engine = engine_of(2, autotune=True, algorithm=LocalSGD(interval=50))
    assert not engine.listener.order.is_fixed and engine.listener.tuning.is_done
    assert len(warned) == 1


def test_a_worker_alone_and_whoever_is_tuned_hear_no_warning(made):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine_of(1, autotune=True).listener.tuning.is_done
        assert not engine_of(2, autotune=True).listener.tuning.is_done


def test_an_engine_whose_order_cannot_be_measured_is_closed(made, monkeypatch):
    engines = []

    def fail(engine: Any, bucket_bytes: int | None) -> Order:
        engines.append(engine)
        raise RuntimeError("a worker has gone")

    monkeypatch.setattr(module, "choose_order", fail)
    with pytest.raises(RuntimeError, match="a worker has gone"):
        engine_of(3, autotune=True)
    engines[0].close.assert_called_once_with()
