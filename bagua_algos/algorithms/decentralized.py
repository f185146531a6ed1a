"""Decentralized SGD: workers average their weights with few others, while they compute.

    m_i <- sum_j A_ij x_j            travels while forward and backward compute g_i at x_i
    x_i <- optimizer(m_i, g_i)       with SGD: m_i - lr g_i

A is the topology's matrix (BAGUA's D_FP_S). Models differ between workers; their mean moves as in
SGD on the mean gradient. Hierarchical, a node's workers average with each other and their leader
with other nodes' leaders: A is of nodes, and a single node averages fully.

Paper: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?" (D-PSGD),
arXiv 1705.09056, Algorithm 1. Differs from the paper: A may change with every communication and
need not be symmetric; any optimizer (its own state is not averaged; weight decay acts on m); with
`interval` > 1 the steps between are local.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.optim import Optimizer

from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import mix
from bagua_algos.communication.topology import Complete, Mixing, Ring, Topology
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Move
from bagua_algos.settings import check_parts, check_whole


@kept
@dataclass(kw_only=True)
class DecentralizedState:
    """`num_backwards` counts backward passes that ended, which all workers have in common;
    `mixed` are the averages that wait for the end of the current one, one a bucket.
    """

    num_backwards: int = 0
    mixed: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Decentralized(Hierarchical):
    """Decentralized, full precision, synchronous; averages at every `interval`-th backward pass,
    which is a step where all micro-batches but the last are within `no_sync`.

    Args:
        topology: which workers average with which, such as `Ring()` or `Exponential()`.
        interval: steps from one average to the next.

    Raises:
        ValueError: an interval that is no whole number of at least one, or a topology that is not
            doubly stochastic.
    """

    family = "decentralized"
    workers_agree = False
    depends_on_buckets = False
    all_reduces = False

    topology: Topology = field(default_factory=Ring)
    interval: int = 1

    def __post_init__(self) -> None:
        check_parts(self)
        check_whole("interval", self.interval, least=1)
        if not self.topology.is_doubly_stochastic:
            raise ValueError(
                f"decentralized SGD needs a doubly stochastic topology (arXiv 1705.09056), "
                f"which {type(self.topology).__name__} is not: take SGP"
            )

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` unless the topology connects all workers; `init` checks nodes."""
        if not self.hierarchical:
            self.topology.mixing(0, world_size)

    @property
    def steps_per_round(self) -> int:
        """The interval."""
        return self.interval

    def move_state(self, context: Context, move: Move) -> DecentralizedState:
        """Averages that wait, if any, in other buckets."""
        state: DecentralizedState = context.state
        return replace(state, mixed=move.carry(state.mixed) if state.mixed else [])

    def init(self, context: Context) -> DecentralizedState:
        """Nothing travels yet; `ValueError` where the topology cannot connect the nodes."""
        self._mixing(context, 0)
        return DecentralizedState()

    def skip_to(self, context: Context) -> None:
        """As if every step had had one backward pass."""
        context.state.num_backwards = context.step

    def replaces_weights(self, context: Context) -> bool:
        """Where weights travel in this step."""
        return context.state.num_backwards % self.interval == 0

    def on_forward(self, context: Context) -> None:
        """Average the weights, beside the computation that reads them."""
        state: DecentralizedState = context.state
        # With gradient accumulation one backward ends after several forwards: the first averages.
        if state.mixed or state.num_backwards % self.interval:
            return
        mixing = self._mixing(context, state.num_backwards // self.interval)
        state.mixed = [
            mix(bucket.weights, mixing, context.communicator, self.hierarchical)
            for bucket in context.buckets
        ]

    def on_backward_end(self, context: Context) -> None:
        """The average replaces the weights that the gradients are of."""
        state: DecentralizedState = context.state
        if state.mixed:
            for bucket, mixed_wn in zip(context.buckets, state.mixed, strict=True):
                bucket.weights.copy_(mixed_wn)
        state.mixed = []
        state.num_backwards += 1

    def on_left_out(self, context: Context) -> None:
        """Nothing waits any more: the next average is of the weights as they are then."""
        context.state.mixed = []

    def _mixing(self, context: Context, step: int) -> Mixing:
        num_parties = levels(context.communicator, self.hierarchical).num_parties
        topology = self.topology if num_parties > 1 else Complete()  # a node without others
        return topology.mixing(step, num_parties)
