"""One algorithm a file."""

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.algorithms.async_model_average import AsyncModelAverage
from bagua_algos.algorithms.choco_sgd import ChocoSGD
from bagua_algos.algorithms.compressed_all_reduce import ByteGrad, CompressedAllReduce
from bagua_algos.algorithms.decentralized import Decentralized
from bagua_algos.algorithms.local_sgd import LocalSGD
from bagua_algos.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_algos.algorithms.power_sgd import PowerSGD
from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.algorithms.sgp import SGP
from bagua_algos.algorithms.top_k import TopK

__all__ = [
    "SGP",
    "AllReduce",
    "AsyncModelAverage",
    "ByteGrad",
    "ChocoSGD",
    "CompressedAllReduce",
    "Decentralized",
    "LocalSGD",
    "LowPrecisionDecentralized",
    "PowerSGD",
    "QAdam",
    "TopK",
]
