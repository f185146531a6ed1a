"""System relaxations for distributed training, each written once for real and for simulated
workers.

model, optimizer = bagua_algos.distribute(model, optimizer, bagua_algos.ByteGrad())
"""

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.algorithms import AllReduce, ByteGrad, CompressedAllReduce
from bagua_algos.communicator import CommunicationError
from bagua_algos.distribute import consensus, distribute, no_sync, release

__all__ = [
    "Algorithm",
    "AllReduce",
    "ByteGrad",
    "CommunicationError",
    "CompressedAllReduce",
    "Context",
    "consensus",
    "distribute",
    "no_sync",
    "release",
]
