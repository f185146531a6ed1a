"""Low-precision decentralized SGD: neighbours on a ring send codes of how their weights changed.

    x <- optimizer(w, g)
    z <- x + L/3 + R/3 - 5/3 w                  = (x - w) + (the ring's average of w, L, R  -  w)
    send Q(z) to both neighbours
    w += Q(z);  L += Q(z_left);  R += Q(z_right);  x <- w

w, L and R are replicas of a worker's own weights and of its neighbours': equal to theirs bit for
bit, since all add up the same codes. Two workers have one neighbour: z <- x + L/2 - 3/2 w. A
worker alone has nobody to send to: nothing is compressed.

Paper: Tang et al., "Communication Compression for Decentralized Training" (DCD-PSGD), arXiv
1803.06443, Algorithm 1; BAGUA's D_LP_S (arXiv 2107.01499). Differs from the paper: any optimizer;
the code may be biased (MinMaxUInt8 rounds to the nearest), and the mean of the workers then moves a
little off the mean gradient's way. Known failure: it diverges with noisy codes, such as an unbiased
random sparsification (the paper bounds the error that Q may make); CHOCO-SGD takes those.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.communicator import Communicator
from bagua_algos.compression import Compressor, Draw, MinMaxUInt8
from bagua_algos.topology import Mixing, Ring, Topology, of_held


@dataclass(frozen=True, eq=False, kw_only=True)
class Replicas:
    """One bucket's weights as everyone knows them, `[w, numel]` in float32: a worker's `own`, and
    those of the neighbours that its exchanges hear from.
    """

    own: Tensor
    neighbours: list[Tensor]

    def averaged(self, mixing: Mixing, communicator: Communicator) -> Tensor:
        """What the topology makes of the replicas, `[w, numel]`."""
        average = of_held(mixing.self_weights, communicator, self.own) * self.own
        for exchange, neighbour in zip(mixing.exchanges, self.neighbours, strict=True):
            average += of_held(exchange.weights, communicator, neighbour) * neighbour
        return average


@dataclass(frozen=True, kw_only=True)
class LowPrecisionDecentralized(Algorithm):
    """Decentralized, low precision, synchronous. State: the replicas, one set a bucket."""

    workers_agree = False

    compressor: Compressor = field(default_factory=MinMaxUInt8)
    topology: Topology = field(default_factory=Ring)

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Ring):
            raise ValueError(
                "low-precision decentralized SGD keeps a replica of each neighbour's weights, "
                "of the same two at every step (arXiv 1803.06443): its topology must be Ring, "
                f"not {type(self.topology).__name__}; CHOCO-SGD and Decentralized take others"
            )

    def init(self, context: Context) -> list[Replicas]:
        """Replicas of the weights, which all workers have in common by now."""
        num_neighbours = len(self._mixing(context).exchanges)
        replicas = []
        for bucket in context.buckets:
            weights = bucket.weights[:, : bucket.numel]
            own, *neighbours = (
                weights.to(torch.float32, copy=True) for _ in range(1 + num_neighbours)
            )
            replicas.append(Replicas(own=own, neighbours=neighbours))
        return replicas

    def on_step_end(self, context: Context) -> None:
        """Exchange the codes of the change, and take the replica for the weights."""
        communicator, mixing = context.communicator, self._mixing(context)
        if not mixing.exchanges:
            return
        for bucket, replicas in zip(context.buckets, context.state, strict=True):
            x = bucket.weights[:, : bucket.numel]
            z = x + replicas.averaged(mixing, communicator) - 2 * replicas.own
            draw = Draw(ranks=communicator.ranks, step=context.step, bucket=bucket.index)
            payload = self.compressor.compress(z, draw)
            replicas.own.add_(self.compressor.decompress(payload, bucket.numel))
            for exchange, neighbour in zip(mixing.exchanges, replicas.neighbours, strict=True):
                arrived = communicator.exchange(payload, exchange.peers)
                neighbour.add_(self.compressor.decompress(arrived, bucket.numel))
            x.copy_(replicas.own)

    def _mixing(self, context: Context) -> Mixing:
        return self.topology.mixing(0, context.communicator.world_size)
