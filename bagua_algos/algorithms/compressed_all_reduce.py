"""Compressed all-reduce: gradients travel in fewer bits, everything else is synchronous data
parallelism.

    q_ij  = Q(chunk i of g_j [+ e_j])           worker j sends q_ij to worker i, the owner of
    chunk i m_i   = mean_j D(q_ij) [+ E_i]              in float32 g     = (D(Q(m_1)), ...,
    D(Q(m_N)))         everyone decodes the same bytes

With Q = MinMaxUInt8 and no error feedback it is BAGUA's ByteGrad.

Paper: Gan et al., "BAGUA", arXiv 2107.01499, section 3 (C_LP_S); error feedback on both sides:
Tang et al., "DoubleSqueeze", arXiv 1905.05957. Differs from the paper: the padding of a bucket
never widens a chunk's range; a chunk with NaN or infinity decodes to NaN.
"""

from dataclasses import dataclass

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.bucket import Bucket
from bagua_algos.compression import Compressor, MinMaxUInt8
from bagua_algos.primitives import Residuals, compressed_all_reduce_mean_


@dataclass(frozen=True, kw_only=True)
class CompressedAllReduce(Algorithm):
    """Centralized, low precision, synchronous (BAGUA's C_LP_S). State: the residuals, one pair a
    bucket.
    """

    compressor: Compressor
    error_feedback: bool = False

    def init(self, context: Context) -> list[Residuals] | None:
        """Residuals of zero where error feedback is on."""
        if not self.error_feedback:
            return None
        world_size = context.communicator.world_size
        return [Residuals.zeros_like(b.gradients, world_size) for b in context.buckets]

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients by their codes."""
        compressed_all_reduce_mean_(
            bucket.gradients,
            bucket.numel,
            context.communicator,
            self.compressor,
            context.state[bucket.index] if context.state else None,
        )


def ByteGrad(*, error_feedback: bool = False) -> CompressedAllReduce:
    """Compressed all-reduce by BAGUA's name for it: gradients in MinMaxUInt8."""
    return CompressedAllReduce(compressor=MinMaxUInt8(), error_feedback=error_feedback)
