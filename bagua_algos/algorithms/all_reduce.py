"""Gradient all-reduce: nothing is relaxed; the baseline that every relaxation is compared with.

    g <- mean_j g_j             per bucket, while backward computes, in `wire`'s precision
    x <- optimizer(x, g)

Paper: Li et al., "PyTorch Distributed", arXiv 2006.15704 (bucketing and overlap). Differs from
the paper: BatchNorm buffers are averaged when a model is evaluated or saved, not broadcast at
every forward (a mean of moving averages is the moving average of the means). Differs from PyTorch's
bf16_compress_hook and fp16_compress_hook: the sum is divided, not the summands, so that small
gradients do not underflow in fp16; a sum of magnitude beyond 65504 is infinite instead.
A simulated run rounds a narrow sum once where real workers round it at every hop:
its gradients are a little more exact than theirs.
"""

from dataclasses import dataclass

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.bucket import Bucket
from bagua_algos.compressors.cast import WIRE_DTYPES

SUMMABLE = ("bf16", "fp16")
"""Types in which a network can add gradients up."""


@dataclass(frozen=True, kw_only=True)
class AllReduce(Algorithm):
    """Centralized, full precision, synchronous (BAGUA's C_FP_S).

    `wire` is the type that gradients are cast to, and summed in: bf16, fp16, or None for their
    own. Raises `ValueError` for another.
    """

    wire: str | None = None

    def __post_init__(self) -> None:
        if self.wire is not None and self.wire not in SUMMABLE:
            raise ValueError(
                f"wire must be bf16, fp16 or None, got {self.wire!r}; fp8 cannot be summed: use "
                "CompressedAllReduce with Cast (algo=allreduce_fp8)"
            )

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients."""
        if self.wire is None:
            context.communicator.all_reduce_mean_(bucket.gradients)
            return
        narrow_wn = bucket.gradients.to(WIRE_DTYPES[self.wire])
        context.communicator.all_reduce_mean_(narrow_wn)
        bucket.gradients.copy_(narrow_wn)
