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

from dataclasses import dataclass

from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import (
    DRAW_STAGES,
    Residuals,
    compressed_all_reduce_mean_,
)
from bagua_algos.compressors.cast import Cast
from bagua_algos.compressors.compressor import Compressor, Draw, warn_of_bias
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket
from bagua_algos.settings import check_parts


@dataclass(frozen=True, kw_only=True)
class CompressedAllReduce(Hierarchical):
    """Centralized, low precision, synchronous (BAGUA's C_LP_S). State: the residuals, one pair a
    bucket.

    Warns of a biased compressor of few bits without error feedback, and of error feedback around
    an unbiased one.

    Args:
        compressor: the code in which gradients travel, such as `QSGD(bits=4)`.
        error_feedback: what a code leaves out is added to the gradients of the next step.
    """

    all_reduces = False
    gradients_agree = True

    compressor: Compressor
    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_parts(self)
        warn_of_bias(self.compressor, self.error_feedback)

    @property
    def family(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A cast to a narrower type is all-reduce still; other codes are quantized."""
        return "all-reduce" if isinstance(self.compressor, Cast) else "quantized"

    @property
    def keeps_unsent(self) -> bool:
        """With error feedback."""
        return self.error_feedback

    def init(self, context: Context) -> list[Residuals] | None:
        """Residuals of zero where error feedback is on."""
        levels(context.communicator, self.hierarchical)  # raises
        if not self.error_feedback:
            return None
        return [
            Residuals.zeros_like(bucket.gradients, context.communicator, self.hierarchical)
            for bucket in context.buckets
        ]

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients by their codes."""
        compressed_all_reduce_mean_(
            bucket.gradients,
            bucket.numel,
            context.communicator,
            self.compressor,
            context.state[bucket.index] if context.state else None,
            Draw(
                ranks=context.communicator.ranks,
                step=context.step,
                bucket=bucket.index,
                stage=DRAW_STAGES * context.backwards,
            ),
            self.hierarchical,
        )


def ByteGrad(*, error_feedback: bool = False) -> CompressedAllReduce:
    """Compressed all-reduce by BAGUA's name for it: gradients in MinMaxUInt8."""
    return CompressedAllReduce(compressor=MinMaxUInt8(), error_feedback=error_feedback)
