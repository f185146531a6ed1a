"""Settings that Python would take whatever they are: what is not whole is refused, not rounded, and
a text is neither true nor false.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import (
    AsyncModelAverage,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    QAdam,
    TopK,
)
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.topology import RandomMatching
from bagua_algos.compressors import QSGD
from bagua_algos.data import CachedDataset, LoadBalancingDistributedSampler
from bagua_algos.data.balance import Balance
from bagua_algos.settings import check_flag, check_whole

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
