"""Compressed all-reduce: gradients travel in fewer bits, everything else is synchronous data
parallelism.

    q_ij = Q(chunk i of g_j [+ e_j])       worker j sends q_ij to worker i, the owner of chunk i
    m_i  = mean_j D(q_ij) [+ E_i]          in float32
    g    = (D(Q(m_1)), ..., D(Q(m_N)))     everyone decodes the same bytes
    x   <- optimizer(x, g)

The compressor makes it one of these:

    bytegrad        MinMaxUInt8                       BAGUA's ByteGrad
    qsgd            QSGD                              arXiv 1610.02132
    ef_signsgd      SignScale with error feedback     arXiv 1901.09847
    allreduce_fp8   Cast to fp8

Paper: Gan et al., "BAGUA", arXiv 2107.01499, section 3 (C_LP_S); error feedback on both sides:
Tang et al., "DoubleSqueeze", arXiv 1905.05957. Differs from the papers: the padding of a bucket
never widens a chunk's range; a chunk with NaN or infinity decodes to NaN; error feedback keeps
gradients, not steps lr * g, so what was left out is applied at the rate of the step that sends it;
the mean is compressed too, where QSGD and EF-SignSGD send every worker's code to everyone.
"""

import warnings
from dataclasses import dataclass

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.bucket import Bucket
from bagua_algos.compression import Compressor, Draw, MinMaxUInt8
from bagua_algos.primitives import Residuals, compressed_all_reduce_mean_

FEW_BITS = 4
"""A biased code of fewer bits an element than this is not to be used without error feedback."""


@dataclass(frozen=True, kw_only=True)
class CompressedAllReduce(Algorithm):
    """Centralized, low precision, synchronous (BAGUA's C_LP_S). State: the residuals, one pair a
    bucket.

    Warns of a biased compressor of few bits without error feedback, and of error feedback around
    an unbiased one.
    """

    compressor: Compressor
    error_feedback: bool = False

    def __post_init__(self) -> None:
        name, bits = type(self.compressor).__name__, _bits_per_element(self.compressor)
        if not self.error_feedback and not self.compressor.unbiased and bits < FEW_BITS:
            warnings.warn(
                f"{name} is biased and keeps {bits:.2g} bits an element: without error feedback "
                "training may not converge (arXiv 1901.09847); set error_feedback=true",
                stacklevel=3,
            )
        if self.error_feedback and self.compressor.unbiased:
            warnings.warn(
                f"{name} is unbiased, and what it leaves out can be larger than what it was given:"
                " error feedback would let that grow (arXiv 1901.09847 asks for a contraction); "
                "set error_feedback=false",
                stacklevel=3,
            )

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
            Draw(ranks=context.communicator.ranks, step=context.step, bucket=bucket.index),
        )


def ByteGrad(*, error_feedback: bool = False) -> CompressedAllReduce:
    """Compressed all-reduce by BAGUA's name for it: gradients in MinMaxUInt8."""
    return CompressedAllReduce(compressor=MinMaxUInt8(), error_feedback=error_feedback)


def _bits_per_element(compressor: Compressor, num_elements: int = 1 << 20) -> float:
    return 8 * compressor.wire_bytes(num_elements) / num_elements
