"""Stochastic gradient push: averaging over one-way messages; the weights are a ratio of two sums.

    z_i <- optimizer(z_i, g_i)                  g_i at z_i, which are the model's weights
    x_i <- sum_j A_ij (x_j + change of z_j)     columns of A sum to 1, rows need not
    w_i <- sum_j A_ij w_j                       starts at 1, and stays so if rows sum to 1
    z_i <- x_i / w_i

With `overlap` x travels while forward and backward compute, as in decentralized SGD, and a change
is added where it arose: x_i <- (sum_j A_ij x_j) + change of z_i.

Paper: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", arXiv 1811.10792,
Algorithm 1. Differs from the paper: w is not sent, because everyone knows A, and so everyone's w;
any optimizer (it acts on z, so weight decay belongs to the gradient at z); the paper's overlap lets
a message arrive a step late, here it is always of the current step.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import of_held
from bagua_algos.communication.primitives import mix
from bagua_algos.communication.topology import Exponential, Mixing, Topology
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.bucket import Move
from bagua_algos.settings import check_parts


@kept
@dataclass(kw_only=True)
class PushSum:
    """`numerators`: x of each bucket, `[w, n]`. `denominators`: w of all N workers. `mixed`: the x
    of each bucket that have arrived early and wait for the step's end.
    """

    numerators: list[Tensor]
    denominators: Tensor
    mixed: list[Tensor] = field(default_factory=list)
    num_mixings: int = 0


@dataclass(frozen=True, kw_only=True)
class SGP(Algorithm):
    """Decentralized, full precision, synchronous, over any topology.

    Args:
        topology: which workers send to which.
        overlap: weights travel beside the computation, not after it.
    """

    family = "decentralized"
    workers_agree = False
    depends_on_buckets = False
    all_reduces = False

    topology: Topology = field(default_factory=Exponential)
    overlap: bool = False

    def __post_init__(self) -> None:
        check_parts(self)

    @property
    def keeps_weights(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """With overlap, and where weights are not the numerators: the optimizer's change of a step
        is what they differ by.
        """
        return self.overlap or not self.topology.is_doubly_stochastic

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` unless the topology can connect `world_size` workers."""
        self.topology.mixing(0, world_size)

    def init(self, context: Context) -> PushSum:
        """The weights over one."""
        world_size = context.communicator.world_size
        return PushSum(
            numerators=[bucket.weights.clone() for bucket in context.buckets],
            denominators=torch.ones(world_size, dtype=torch.float64, device="cpu"),
        )

    def move_state(self, context: Context, move: Move) -> PushSum:
        """Numerators, and those that have arrived early, in other buckets."""
        state: PushSum = context.state
        return replace(
            state,
            numerators=move.carry(state.numerators),
            mixed=move.carry(state.mixed) if state.mixed else [],
        )

    def on_forward(self, context: Context) -> None:
        """With overlap: x travels beside the computation, once a step."""
        state: PushSum = context.state
        if self.overlap and not state.mixed:
            mixing = self._mixing(context)
            state.mixed = [mix(x, mixing, context.communicator) for x in state.numerators]

    def on_step_end(self, context: Context) -> None:
        """Apply the optimizer's change of z to x, mix x and w, set the weights to the ratio."""
        self.on_forward(context)  # where the step had none
        state, communicator, mixing = context.state, context.communicator, self._mixing(context)
        before = state.denominators.tolist()
        state.denominators = torch.from_numpy(mixing.matrix()) @ state.denominators
        after = state.denominators.tolist()
        for index, bucket in enumerate(context.buckets):
            z, x = bucket.weights, state.numerators[index]
            old_z = (x / of_held(before, communicator, x)).to(z.dtype)
            if self.overlap:
                x = (state.mixed[index] - old_z) + z
            else:
                x = mix((x - old_z) + z, mixing, communicator)  # x - old_z is 0 where w is 1
            state.numerators[index] = x
            z.copy_(x / of_held(after, communicator, x))
        state.mixed = []
        state.num_mixings += 1

    def _mixing(self, context: Context) -> Mixing:
        return self.topology.mixing(context.state.num_mixings, context.communicator.world_size)
