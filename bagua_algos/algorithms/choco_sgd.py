"""CHOCO-SGD: workers gossip over public copies of their weights and update the copies by codes.

    x_i <- optimizer(x_i, g_i)
    q_i  = Q(x_i - xhat_i)                         sent to all neighbours
    xhat_i += q_i;   s_i += sum_j A_ij q_j         so that s_i = sum_j A_ij xhat_j
    x_i <- x_i + gamma (s_i - xhat_i)              = x_i + gamma sum_j A_ij (xhat_j - xhat_i)

What a code leaves out stays in x - xhat and is sent later: error feedback, built in. Coarse codes
need a small gamma, and diverge otherwise.

Paper: Koloskova et al., "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", arXiv 1902.00340, Algorithm 2, in the memory-efficient form of its
appendix: two tensors a worker, however many neighbours. Differs from the paper: xhat starts as the
weights that all workers begin with, not as zero; any optimizer.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import of_held
from bagua_algos.communication.topology import Ring, Topology
from bagua_algos.compressors.compressor import Compressor, Draw, relative_error
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.settings import check_parts


@kept
@dataclass(frozen=True, eq=False, kw_only=True)
class PublicCopies:
    """One bucket's xhat and s, `[w, numel]` in float32 at least: a worker's public copy, and the
    average of its neighbours' copies.
    """

    own: Tensor
    averaged: Tensor


@dataclass(frozen=True, kw_only=True)
class ChocoSGD(Algorithm):
    """Decentralized, low precision, synchronous, any contractive code. State: the public copies,
    one pair a bucket.

    Args:
        compressor: the code in which changes of the public copies travel.
        topology: which workers average with which: one that stays and is mutual, such as `Ring()`
            or `Complete()`.
        gamma: the consensus step size, in (0, 1]; smaller for coarser codes.

    Raises:
        ValueError: a number out of range, another topology, or a code that errs by all of its input
            or more.
    """

    family = "decentralized"
    workers_agree = False
    all_reduces = False
    keeps_weights = True

    compressor: Compressor = field(default_factory=MinMaxUInt8)
    topology: Topology = field(default_factory=Ring)
    gamma: float = 0.8

    def __post_init__(self) -> None:
        check_parts(self)
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must be more than 0 and at most 1, got {self.gamma}")
        if not (self.topology.is_static and self.topology.is_symmetric):
            raise ValueError(
                "CHOCO-SGD adds up its neighbours' codes over all steps, so that neighbours and "
                "weights must stay and be mutual (arXiv 1902.00340): its topology must be static "
                f"and symmetric, such as Ring, which {type(self.topology).__name__} is not"
            )
        error = relative_error(self.compressor)
        if error >= 1:
            raise ValueError(
                f"CHOCO-SGD needs a code that errs by less than it is given (arXiv 1902.00340, "
                f"assumption 1), and {self.compressor} errs by {error:.2g} of it: choose a finer "
                "one, or one that is biased, such as Largest"
            )

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` unless the topology can connect `world_size` workers."""
        self.topology.mixing(0, world_size)

    def init(self, context: Context) -> list[PublicCopies]:
        """Copies of the weights, which all workers have in common by now."""
        copies = []
        for bucket in context.buckets:
            x = bucket.weights[:, : bucket.numel]
            dtype = torch.promote_types(x.dtype, torch.float32)
            copies.append(PublicCopies(own=x.to(dtype, copy=True), averaged=x.to(dtype, copy=True)))
        return copies

    def on_step_end(self, context: Context) -> None:
        """Exchange codes of what the public copies lack, and move towards the neighbours'."""
        communicator = context.communicator
        mixing = self.topology.mixing(0, communicator.world_size)
        for bucket, public in zip(context.buckets, context.state, strict=True):
            x = bucket.weights[:, : bucket.numel]
            draw = Draw(ranks=communicator.ranks, step=context.step, bucket=bucket.index)
            payload = self.compressor.compress(x - public.own, draw)
            q = self.compressor.decompress(payload, bucket.numel)
            public.own.add_(q)
            public.averaged.addcmul_(q, of_held(mixing.self_weights, communicator, q))
            for exchange in mixing.exchanges:
                arrived = communicator.exchange(payload, exchange.peers)
                q = self.compressor.decompress(arrived, bucket.numel)
                public.averaged.addcmul_(q, of_held(exchange.weights, communicator, q))
            x.add_(public.averaged - public.own, alpha=self.gamma)
