"""Numbers of steps and the like, of every algorithm: what is not whole is refused, not rounded."""

import math

import numpy as np
import pytest

from bagua_algos import (
    AsyncModelAverage,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    QAdam,
    TopK,
)
from bagua_algos.communication.topology import RandomMatching
from bagua_algos.compressors import QSGD
from bagua_algos.whole_numbers import check_whole

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
