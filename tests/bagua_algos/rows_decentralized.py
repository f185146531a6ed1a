"""Decentralized and asynchronous algorithms, for the suite over all algorithms."""

from collections.abc import Callable

from bagua_algos import Algorithm
from bagua_algos.algorithms.async_model_average import AsyncModelAverage
from bagua_algos.algorithms.choco_sgd import ChocoSGD
from bagua_algos.algorithms.decentralized import Decentralized
from bagua_algos.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_algos.algorithms.sgp import SGP
from bagua_algos.communication.topology import (
    Complete,
    Exponential,
    RandomMatching,
    ShiftOne,
)

ROWS: dict[str, Callable[[], Algorithm]] = {
    "decentralized": lambda: Decentralized(interval=2),
    "decentralized_random": lambda: Decentralized(topology=RandomMatching(seed=1)),
    "decentralized_shift_one": lambda: Decentralized(topology=ShiftOne()),
    "low_precision_decentralized": LowPrecisionDecentralized,
    "choco_sgd": ChocoSGD,
    "choco_sgd_complete": lambda: ChocoSGD(topology=Complete(), gamma=0.5),
    "async_model_average": lambda: AsyncModelAverage(interval_ms=0),
    "sgp": SGP,
    "sgp_overlapped": lambda: SGP(topology=Exponential(), overlap=True),
}
