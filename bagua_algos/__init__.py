"""System relaxations for distributed training, each written once for real and simulated workers.

model, optimizer = bagua_algos.distribute(model, optimizer, bagua_algos.ByteGrad())
"""

from bagua_algos import data
from bagua_algos.algorithms import (
    SGP,
    AllReduce,
    AsyncModelAverage,
    ByteGrad,
    ChocoSGD,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    LowPrecisionDecentralized,
    PowerSGD,
    QAdam,
    TopK,
)
from bagua_algos.checkpoint import kept
from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.distribute import (
    consensus,
    distribute,
    empty_backward,
    is_distributed,
    load_state_dict,
    no_sync,
    release,
    state_dict,
    tuning,
)
from bagua_algos.engine.algorithm import Algorithm, Context, Hierarchical
from bagua_algos.engine.bucket import Bucket
from bagua_algos.fused.fuse import fuse_optimizer, unfuse_optimizer

__all__ = [
    "SGP",
    "Algorithm",
    "AllReduce",
    "AsyncModelAverage",
    "Bucket",
    "ByteGrad",
    "ChocoSGD",
    "CommunicationError",
    "CompressedAllReduce",
    "Context",
    "Decentralized",
    "Hierarchical",
    "LocalSGD",
    "LowPrecisionDecentralized",
    "PowerSGD",
    "ProcessGroupCommunicator",
    "QAdam",
    "TopK",
    "consensus",
    "data",
    "distribute",
    "empty_backward",
    "fuse_optimizer",
    "is_distributed",
    "kept",
    "load_state_dict",
    "no_sync",
    "release",
    "state_dict",
    "tuning",
    "unfuse_optimizer",
]
