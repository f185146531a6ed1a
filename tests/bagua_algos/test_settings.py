"""Settings that Python would take whatever they are: what is not whole is refused, not rounded, and
a text is neither true nor false.
"""

import math
import re
import threading
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import bagua_algos
from bagua_algos import (
    SGP,
    AllReduce,
    AsyncModelAverage,
    ChocoSGD,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    QAdam,
    TopK,
)
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.topology import RandomMatching, Ring
from bagua_algos.compressors import QSGD
from bagua_algos.data import CachedDataset, LoadBalancingDistributedSampler
from bagua_algos.data.balance import Balance
from bagua_algos.outer_optimizer import Nesterov
from bagua_algos.settings import check_flag, check_number, check_whole

NAMES = [
    (Decentralized, "interval"),
    (LowPrecisionDecentralized, "interval"),
    (LocalSGD, "interval"),
    (LocalSGD, "start_step"),
    (AsyncModelAverage, "warmup_steps"),
    (TopK, "warmup_steps"),
    (PowerSGD, "warmup_steps"),
    (PowerSGD, "rank"),
    (PowerSGD, "seed"),
    (QAdam, "warmup_steps"),
    (QSGD, "group_size"),
    (QSGD, "seed"),
    (RandomMatching, "seed"),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, 4.0, -1, True, "4", None])
@pytest.mark.parametrize(("make", "name"), NAMES)
def test_what_is_no_whole_number_is_refused(make, name, value):
    with pytest.raises(ValueError, match=rf"^{name}.* must be a whole number .* got {value}$"):
        make(**{name: value})


@pytest.mark.parametrize(("make", "name"), NAMES)
def test_whole_numbers_of_numpy_are_taken(make, name):
    assert getattr(make(**{name: np.int64(3)}), name) == 3


def test_the_least_is_taken_and_less_is_not():
    check_whole("steps", 2, least=2)
    with pytest.raises(ValueError, match=r"^steps must be a whole number of at least 2, got 1$"):
        check_whole("steps", 1, least=2)


def test_the_most_is_taken_and_more_is_not():
    check_whole("rank", np.int64(3), least=0, most=3)
    with pytest.raises(ValueError, match=r"^rank must be a whole number in 0\.\.3, got 4$"):
        check_whole("rank", 4, least=0, most=3)


@pytest.mark.parametrize("value", [math.nan, np.nan, "100", None, True, 1j, [1]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=rf"^cost must be a number, got {re.escape(repr(value))}$"):
        check_number("cost", value)


@pytest.mark.parametrize("value", [0, -1.5, math.inf, np.float32(2), np.int8(3)])
def test_numbers_are_taken(value):
    check_number("cost", value)


@pytest.mark.parametrize("algorithm", [LocalSGD(hierarchical="no"), TopK(momentum_masking="false")])
def test_a_text_in_place_of_true_or_false_is_refused_where_an_algorithm_begins(algorithm):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match=r"^\w+ must be True or False, got '(no|false)'$"):
        bagua_algos.distribute(model, optimizer, algorithm, LoopbackCommunicator(1))


@pytest.mark.parametrize("option", ["find_unused_parameters", "autotune", "shared_memory"])
def test_a_text_in_place_of_true_or_false_is_refused_by_distribute(option):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=f"^{option} must be True or False, got 'no'$"):
        bagua_algos.distribute(model, optimizer, LocalSGD(), **{option: "no"})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: CachedDataset([1, 2], allow_pickle="no"), "allow_pickle"),
        (lambda: Balance(num_workers=2, shuffle="no"), "shuffle"),
        (
            lambda: LoadBalancingDistributedSampler([1, 2], len, 1, 0, drop_last="no"),
            "drop_last",
        ),
    ],
)
def test_a_text_in_place_of_true_or_false_is_refused_with_data(make, name):
    with pytest.raises(ValueError, match=f"^{name} must be True or False, got 'no'$"):
        make()


@pytest.mark.parametrize("value", [True, False, 0, 1, None, np.True_])
def test_what_equals_true_or_false_is_a_flag(value):
    check_flag("autotune", value)


@pytest.mark.parametrize("value", [2, -1, 0.5, math.nan])
def test_other_numbers_are_no_flags(value):
    with pytest.raises(ValueError, match=f"^autotune must be True or False, got {value}$"):
        check_flag("autotune", value)


@pytest.mark.parametrize(
    ("make", "name", "value", "shown"),
    [
        (LocalSGD, "outer", Nesterov, "the class Nesterov: call it"),
        (LocalSGD, "outer", "nesterov", "'nesterov'"),
        (LocalSGD, "outer", torch.optim.SGD, "the class SGD: call it"),
        (partial(LocalSGD, outer=Nesterov()), "compressor", "qsgd", "'qsgd'"),
        (CompressedAllReduce, "compressor", QSGD, "the class QSGD: call it"),
        (CompressedAllReduce, "compressor", None, "None"),
        (QAdam, "compressor", "int8", "'int8'"),
        (ChocoSGD, "compressor", QSGD, "the class QSGD: call it"),
        (ChocoSGD, "topology", Ring, "the class Ring: call it"),
        (LowPrecisionDecentralized, "compressor", "int8", "'int8'"),
        (LowPrecisionDecentralized, "topology", "ring", "'ring'"),
        (Decentralized, "topology", "ring", "'ring'"),
        (Decentralized, "topology", Ring, "the class Ring: call it"),
        (SGP, "topology", None, "None"),
        (SGP, "topology", Ring, "the class Ring: call it"),
    ],
)
def test_a_part_of_an_algorithm_is_an_object(make, name, value, shown):
    with pytest.raises(
        ValueError, match=rf"^{name} must be an object such as \w+\(\), got {shown}$"
    ):
        make(**{name: value})


class Halfway:
    """An outer optimizer of a script's own."""

    def step_(self, anchor, outer_gradient, momentum, inner_lr):
        anchor.sub_(outer_gradient, alpha=0.5)


class OneWay:
    """A code that nobody can read."""

    def wire_bytes(self, num_elements):
        return num_elements

    def compress(self, x, draw=None):
        return x


def test_a_part_has_all_methods_of_its_kind():
    with pytest.raises(ValueError, match=r"^compressor must be an object such as MinMaxUInt8\(\)"):
        CompressedAllReduce(compressor=OneWay())


def test_parts_of_a_scripts_own_are_taken():
    assert isinstance(LocalSGD(outer=Halfway()).outer, Halfway)
    assert LocalSGD(outer=None, compressor=None).outer is None


def distribute(**options):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    options = {"algorithm": LocalSGD(), "communicator": LoopbackCommunicator(1)} | options
    bagua_algos.distribute(model, optimizer, **options)
    bagua_algos.release(model)


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (AllReduce, "the class AllReduce: call it"),
        (bagua_algos.ByteGrad, "the function ByteGrad: call it"),
        ("allreduce", "'allreduce'"),
        (None, "None"),
    ],
)
def test_what_is_no_algorithm_is_refused(algorithm, shown):
    sentence = rf"^algorithm must be an object such as AllReduce\(\), got {shown}$"
    with pytest.raises(ValueError, match=sentence):
        distribute(algorithm=algorithm)


@pytest.mark.parametrize(
    "value", [None, "60", math.nan, math.inf, 0, -1, timedelta(seconds=60)], ids=str
)
def test_a_time_limit_is_a_number_of_seconds(value):
    with pytest.raises(ValueError, match=r"^timeout_s must be a number of seconds, more than 0"):
        distribute(timeout_s=value)


def test_a_time_limit_may_be_as_long_as_a_thread_can_wait():
    distribute(timeout_s=threading.TIMEOUT_MAX)


@pytest.mark.parametrize("value", [None, "4", math.nan, 0, -1])
def test_a_bucket_has_a_byte_at_least(value):
    with pytest.raises(ValueError, match=r"^bucket_bytes must be a number of at least 1, got"):
        distribute(bucket_bytes=value)


@pytest.mark.parametrize("value", [True, "fp16", torch.amp.GradScaler])
def test_a_scaler_is_an_object(value):
    with pytest.raises(ValueError, match=r"^grad_scaler must be an object such as torch\.amp"):
        distribute(grad_scaler=value)


@pytest.mark.parametrize("value", ["gloo", LoopbackCommunicator, -100])
def test_a_communicator_is_an_object(value):
    with pytest.raises(ValueError, match=r"^communicator must be an object such as ProcessGroupC"):
        distribute(communicator=value)


def test_a_process_group_is_no_communicator():
    group = dist.ProcessGroup(0, 1)
    with pytest.raises(ValueError, match=r"give ProcessGroupCommunicator\(group\)$"):
        distribute(communicator=group)


class Scaler(torch.amp.GradScaler):
    """Of a script's own."""


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 1},
        {"timeout_s": np.float32(0.5)},
        {"bucket_bytes": 2.5e6},
        {"bucket_bytes": math.inf},
        {"grad_scaler": Scaler("cpu")},
        {"grad_scaler": torch.amp.GradScaler("cpu", enabled=False)},
    ],
    ids=lambda options: "-".join(map(str, options)),  # no addresses
)
def test_what_has_always_been_taken_is(options):
    distribute(**options)
