"""Low-precision decentralized SGD: neighbours on a ring send codes of how their weights changed.

    x <- optimizer(w, g)
    z <- x + L/3 + R/3 - 5/3 w                  = (x - w) + (the ring's average of w, L, R  -  w)
    send Q(z) to both neighbours
    w += Q(z);  L += Q(z_left);  R += Q(z_right);  x <- w

With `interval` > 1 the steps between are local, and x - w is the change of all of them.

w, L and R are replicas of a worker's own weights and of its neighbours': equal to theirs bit for
bit, since all add up the same codes. Two workers have one neighbour: z <- x + L/2 - 3/2 w. A
worker alone has nobody to send to: nothing is compressed.

Paper: Tang et al., "Communication Compression for Decentralized Training" (DCD-PSGD), arXiv
1803.06443, Algorithm 1; BAGUA's D_LP_S (arXiv 2107.01499). Differs from the paper: any optimizer;
the code may be biased (MinMaxUInt8 rounds to the nearest), and the mean of the workers then moves a
little off the mean gradient's way. Known failure: it diverges with noisy codes, such as an unbiased
random sparsification (the paper bounds the error that Q may make); CHOCO-SGD takes those.
With `hierarchical`, node leaders do all this, and x is the mean of a node's workers. With a single
node, all workers average fully.
"""

import warnings
from dataclasses import dataclass, field

from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import Replicas, compressed_mix_
from bagua_algos.communication.topology import Mixing, Ring, Topology
from bagua_algos.compressors.compressor import Compressor, Draw, relative_error
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.settings import check_parts, check_whole

MAX_RELATIVE_ERROR = 0.5
"""The theorem's (1 - rho) / (2 mu), of the best connected ring: rho = 0, mu = 1."""


@dataclass(frozen=True, kw_only=True)
class LowPrecisionDecentralized(Hierarchical):
    """Decentralized, low precision, synchronous; codes travel at every `interval`-th step. State:
    the replicas, one set a bucket.

    Warns of a code that is too coarse.

    Args:
        compressor: the code in which changes of the weights travel.
        topology: a ring.
        interval: steps from one exchange to the next.

    Raises:
        ValueError: another topology than a ring, or an interval that is no whole number of at least
            one.
    """

    family = "decentralized"
    workers_agree = False
    all_reduces = False
    keeps_weights = True

    compressor: Compressor = field(default_factory=MinMaxUInt8)
    topology: Topology = field(default_factory=Ring)
    interval: int = 1

    def __post_init__(self) -> None:
        check_parts(self)
        check_whole("interval", self.interval, least=1)
        if not isinstance(self.topology, Ring):
            raise ValueError(
                "low-precision decentralized SGD keeps a replica of each neighbour's weights, "
                "of the same two at every step (arXiv 1803.06443): its topology must be Ring, "
                f"not {type(self.topology).__name__}; CHOCO-SGD and Decentralized take others"
            )
        error = relative_error(self.compressor)
        if error >= MAX_RELATIVE_ERROR:
            warnings.warn(
                f"{type(self.compressor).__name__} errs by {error:.2g} of what it is given, and no "
                f"ring is proved to bear {MAX_RELATIVE_ERROR} or more (arXiv 1803.06443, theorem "
                "1): training may diverge; choose a finer code, or ChocoSGD",
                stacklevel=3,
            )

    @property
    def steps_per_round(self) -> int:
        """The interval."""
        return self.interval

    def init(self, context: Context) -> list[Replicas]:
        """Replicas of the weights, which all workers have in common by now."""
        communicator, mixing = context.communicator, self._mixing(context)
        return [
            Replicas.of(bucket.weights[:, : bucket.numel], mixing, communicator, self.hierarchical)
            for bucket in context.buckets
        ]

    def on_step_end(self, context: Context) -> None:
        """Where the interval ends, exchange the codes of the change, and take the replica for the
        weights.
        """
        if (context.step + 1) % self.interval:
            return
        communicator, mixing = context.communicator, self._mixing(context)
        for bucket, replicas in zip(context.buckets, context.state, strict=True):
            compressed_mix_(
                bucket.weights[:, : bucket.numel],
                replicas,
                mixing,
                communicator,
                self.compressor,
                Draw(ranks=communicator.ranks, step=context.step, bucket=bucket.index),
                self.hierarchical,
            )

    def _mixing(self, context: Context) -> Mixing:
        num_parties = levels(context.communicator, self.hierarchical).num_parties
        return self.topology.mixing(0, num_parties)
